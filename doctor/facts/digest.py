"""Reduce the facts of one rank to what the other ranks are compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.subjects.rank_set import RankAdapter, RankCheckpoint, RankDigest, RankGpu
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.scheduler import Identity, Scheduler
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.subjects.storage import Storage

KINDS: tuple[type[object], ...] = (
    Identity,
    Scheduler,
    Host,
    Stack,
    Torch,
    Driver,
    Gpus,
    Environment,
    Network,
    Rdma,
    Storage,
)
"""Facts that a digest is made from."""
COMPARED = re.compile(
    r"(NCCL|TORCH|PYTORCH|GLOO|CUDA|FI|UCX|OMP|MKL|OFI_NCCL|SHARP|NVSHMEM|TRITON|ACCELERATE|FSDP|OMPI_MCA)_"
)
"""Variables that change how ranks talk or compute."""
FABRIC_NONE = "00000000-0000-0000-0000-000000000000"


def digest(facts: Facts, rank: int | None = None) -> RankDigest:
    """The digest of one rank; `rank` where the facts themselves do not say (a recording's folder)."""
    identity, scheduler = facts.find(Identity), facts.find(Scheduler)
    host, stack, torch = facts.find(Host), facts.find(Stack), facts.find(Torch)
    driver, gpus = facts.find(Driver), facts.find(Gpus)
    environment, network = facts.find(Environment), facts.find(Network)
    number = rank if rank is not None else identity.rank if identity else None
    master = scheduler.master_addr if scheduler else None
    return RankDigest(
        rank=number or 0,
        host=(identity.host if identity else None) or (host.hostname if host else None),
        local_rank=scheduler.local_rank if scheduler else None,
        world_size=(scheduler.world_size if scheduler else None)
        or (identity.world_size if identity else None),
        local_world_size=scheduler.local_world_size if scheduler else None,
        master_addr=master,
        master_port=scheduler.master_port if scheduler else None,
        master_addresses=network.resolve.get(master) if network and master else None,
        machine_id=host.machine_id if host else None,
        boot_id=host.boot_id if host else None,
        uptime=host.uptime if host else None,
        kernel=host.kernel if host else None,
        python=stack.python if stack else None,
        torch=torch.version if torch else None,
        torch_cuda=torch.cuda if torch else None,
        torch_error=stack.torch_error if stack else None,
        nccl_compiled=torch.nccl if torch else None,
        nccl_runtime=torch.nccl_runtime if torch else None,
        net_plugin=_plugin(stack),
        driver=driver.version if driver else None,
        gpu=_gpu(gpus, scheduler),
        gpu_count=len(gpus.present) if gpus else None,
        environment=_compared(environment),
        dists=dict(stack.dists) if stack else {},
        clock_offset_seconds=identity.clock_offset_seconds if identity else None,
        ipc_namespace=host.ipc_namespace if host else None,
        shm_size=_shm(facts.find(Storage)),
        container=host.container if host else None,
        adapters=_adapters(facts),
        inactive_adapters=_inactive(facts.find(Rdma)),
        interfaces=network.interfaces if network else (),
        checkpoint=_checkpoint(facts.find(Storage)),
        code_version=host.code_version if host else None,
        host_addresses=network.resolve.get(network.hostname) if network else None,
    )


def _plugin(stack: Stack | None) -> str | None:
    if stack is None or "libnccl-net.so" not in stack.dlopen:
        return None
    return stack.dlopen["libnccl-net.so"] or ""


def _gpu(gpus: Gpus | None, scheduler: Scheduler | None) -> RankGpu | None:
    """The GPU of the local rank among those that CUDA shows; one GPU alone is everybody's."""
    if gpus is None:
        return None
    order = gpus.visible if gpus.visible is not None else tuple(g.index for g in gpus.present)
    local = scheduler.local_rank if scheduler else None
    if len(order) == 1:
        place = 0
    elif local is not None and 0 <= local < len(order):
        place = local
    else:
        return None
    gpu = next((g for g in gpus.present if g.index == order[place]), None)
    return None if gpu is None else _rank_gpu(gpu)


def _rank_gpu(gpu: Gpu) -> RankGpu:
    fabric = gpu.fabric
    clique = None
    if fabric is not None and fabric.cluster_uuid not in (None, FABRIC_NONE):
        clique = f"{fabric.cluster_uuid}/{fabric.clique_id}"
    return RankGpu(
        gpu.uuid,
        gpu.index,
        gpu.name,
        gpu.capability,
        gpu.memory_total,
        gpu.power_limit,
        gpu.clock_sm_max,
        clique,
    )


def _compared(environment: Environment | None) -> Mapping[str, str]:
    if environment is None:
        return {}
    files = {name: value for name, (value, _) in environment.nccl_conf.items()}
    return {n: v for n, v in {**files, **environment.variables}.items() if COMPARED.match(n)}


def _shm(storage: Storage | None) -> int | None:
    space = storage.spaces.get("/dev/shm") if storage else None
    return space.total if space else None


def _adapters(facts: Facts) -> tuple[RankAdapter, ...] | None:
    fact = facts.fact(Rdma)
    if isinstance(fact, Unknown):
        return () if fact.absent else None
    return tuple(
        RankAdapter(f"{hca.name}:{p.number}", p.rate_gbps, p.link_layer, hca.firmware, hca.hca_type)
        for hca in fact.value.hcas
        for p in hca.ports
        if p.state == "ACTIVE"
    )


def _inactive(rdma: Rdma | None) -> int | None:
    return None if rdma is None else sum(p.state != "ACTIVE" for hca in rdma.hcas for p in hca.ports)


def _checkpoint(storage: Storage | None) -> RankCheckpoint | None:
    found = storage.checkpoint if storage else None
    if found is None:
        return None
    mount, space = found.mount, found.space
    return RankCheckpoint(
        found.path,
        mount.fstype if mount else None,
        mount.source if mount else None,
        found.exists,
        space.total if space else None,
    )
