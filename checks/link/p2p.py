"""Whether GPUs reach each other's memory, and over how many hops."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import (
    ONE_GPU,
    active_links,
    fabric_waits,
    linked,
    meshed,
    serving,
    unanswered,
)
from fsdp_doctor.engine.devices import MACHINE_USES, counted, gpu_subject, virtual_machine
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.nvml_codes import (
    P2P_DISABLED_BY_KEY,
    P2P_NVLINK,
    P2P_READ,
    P2P_STATUS,
    P2P_WRITE,
    TOPOLOGY,
    TOPOLOGY_SYSTEM,
)

STATUS = "nvmlDeviceGetP2PStatus"
ANCESTOR = "nvmlDeviceGetTopologyCommonAncestor"
WAYS = {P2P_READ: "read", P2P_WRITE: "write", P2P_NVLINK: "NVLink"}
UNKNOWN = 6


def _pairs(gpus: tuple[Gpu, ...], index: int) -> dict[int, list[tuple[int, int]]]:
    """Status -> pairs (lower, higher NVML index) that are not OK for one capability."""
    present = {g.index for g in gpus}
    found: dict[int, set[tuple[int, int]]] = {}
    for g in gpus:
        for (peer, i), status in g.p2p.items():
            if i == index and status and peer in present and peer != g.index:
                found.setdefault(status, set()).add((min(g.index, peer), max(g.index, peer)))
    return {status: sorted(pairs) for status, pairs in found.items()}


def _words(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{a}-{b}" for a, b in pairs[:6])
    return f"GPU pairs {shown}" + (f" and {len(pairs) - 6} more" if len(pairs) > 6 else "")


@check("LNK008", Row.SLOW, needs=(Gpus,), uses=MACHINE_USES, tags=("nvlink", "p2p"))
def p2p_status(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs cannot reach each other's memory (P2P).

    What: reads the driver's P2P status of each pair for reads and writes, and over NVLink on boards where
        every GPU has a link to every other. GeForce GPUs have no P2P by design.
    Why: without P2P NCCL copies through host memory: all-gathers run at a fraction of the speed, although
        nothing reports an error.
    Fix: remove what disables P2P (a driver registry key, IOMMU or ACS, a MIG mode), or set up the fabric.
    Sources: NVML API reference (P2P status); NCCL troubleshooting (GPU-to-GPU communication); gpud.
    """
    gpus = facts[Gpus]
    present = gpus.present
    if len(present) < 2:
        yield skip(ONE_GPU)
        return
    if not any(g.p2p for g in present):
        yield unanswered(present, STATUS, "the P2P status")
        return
    if fabric_waits(gpus) or any(g.mig_current for g in present):
        yield skip("P2P is judged once the fabric is set up and MIG is off")
        return
    nvlink, data_centre = linked(gpus), all(serving(g) for g in present)
    guest = virtual_machine(facts)
    judged = (P2P_READ, P2P_WRITE)
    all_up = len({active_links(g) for g in present}) == 1
    bad: dict[tuple[int, tuple[tuple[int, int], ...]], list[str]] = {}
    for index in (*judged, P2P_NVLINK) if nvlink and meshed(present) and all_up else judged:
        for status, pairs in _pairs(present, index).items():
            bad.setdefault((status, tuple(pairs)), []).append(WAYS[index])
    for (status, found), ways in bad.items():
        pairs = list(found)
        members = [g for g in present if any(g.index in pair for pair in pairs)]
        text = f"P2P {' and '.join(ways)}: {P2P_STATUS.get(status, f'status {status}')} for {_words(pairs)}"
        if status == UNKNOWN:
            yield info(text, subject=gpu_subject(members))
            continue
        if not nvlink and (not data_centre or guest) and status != P2P_DISABLED_BY_KEY:
            reason = "a virtual machine" if data_centre else "GPUs of this class"
            yield info(
                f"{text}, as usual on {reason}",
                expected="NCCL copies through host memory (SHM)",
                subject=gpu_subject(members),
            )
            continue
        say = fail if nvlink or status == P2P_DISABLED_BY_KEY else warn
        yield say(
            text,
            "P2P OK between the GPUs of a node",
            subject=gpu_subject(members),
            fix=Fix(
                "Remove the registry key from the options of the nvidia module, and reload it"
                if status == P2P_DISABLED_BY_KEY
                else "Look at the matrix, then at IOMMU and ACS of the bridges between these GPUs",
                "grep -rn NVreg /etc/modprobe.d"
                if status == P2P_DISABLED_BY_KEY
                else "nvidia-smi topo -p2p r",
                Risk.SAFE,
                Owner.ADMIN,
            ),
            evidence=(Evidence(STATUS, f"status {status} for {len(pairs)} pairs"),),
        )
    if not bad:
        yield ok(f"P2P OK between all {counted(present)}")


@check("LNK015", Row.SLOW, needs=(Gpus,), tags=("p2p", "topology"))
def topology(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs without NVLink talk across CPU sockets.

    What: reads the closest common ancestor of each pair of GPUs that have no NVLink.
    Why: traffic between sockets shares one CPU interconnect: with FSDP over all GPUs of such a machine
        every all-gather crosses it.
    Fix: shard within a socket and replicate across (HYBRID_SHARD), or expect the lower speed.
    Sources: NVML API reference (topology); `nvidia-smi topo -m` legend; PyTorch FSDP documentation.
    """
    gpus = facts[Gpus]
    present = gpus.present
    if len(present) < 2:
        yield skip(ONE_GPU)
        return
    if linked(gpus):
        yield ok(f"{counted(present)} linked by NVLink")
        return
    known = {
        (min(g.index, p), max(g.index, p)): level for g in present for p, level in g.common_ancestor.items()
    }
    if not known:
        yield unanswered(present, ANCESTOR, "the topology between GPUs")
        return
    far = sorted(pair for pair, level in known.items() if level >= TOPOLOGY_SYSTEM)
    if far:
        yield info(
            f"{len(far)} of {len(known)} GPU pairs without NVLink are {TOPOLOGY[TOPOLOGY_SYSTEM]}: "
            f"{_words(far)}",
            expected="groups of GPUs on one socket for sharding, such as a 2-D mesh with HYBRID_SHARD",
        )
    else:
        levels = sorted(set(known.values()))
        yield ok(f"GPU pairs: {', '.join(TOPOLOGY.get(level, str(level)) for level in levels)}")
