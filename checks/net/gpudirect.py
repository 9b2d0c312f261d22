"""Whether adapters can read and write GPU memory without the host in between."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import is_efa
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings, version
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.tables.network import DMABUF_KERNEL, LEGACY_PEERMEM, PEERMEM

BRAND_GEFORCE = 5


def _peermem(driver: Driver) -> list[str]:
    return [m for m in driver.modules if m == PEERMEM or m in LEGACY_PEERMEM]


@check(
    "NET022", Row.SLOW, needs=(Rdma, Driver, Host), uses=(*job.USES, Environment), tags=("net", "rdma", "gpu")
)
def no_gpudirect_path(facts: Facts, options: Options) -> Iterator[Finding]:
    """RDMA adapters have no direct path to GPU memory

    What: neither nvidia_peermem is loaded nor is dma-buf possible (kernel 5.12 or newer with NVIDIA's open
        kernel modules), while the machine has RDMA adapters.
    Why: every message between nodes is then copied through host memory by the CPU: half the bandwidth or
        less, more for small messages. NCCL reports it at level INFO only ("GDR 0").
    Fix: load nvidia_peermem at every boot, or install the driver with open kernel modules.
    Sources: NVIDIA GPUDirect RDMA documentation, NCCL user guide (GPU direct troubleshooting,
        NCCL_DMABUF_ENABLE).
    """
    driver, host = facts[Driver], facts[Host]
    hcas = [h for h in facts[Rdma].hcas if not is_efa(h)]
    gpus = facts.find(Gpus)
    if not hcas:
        yield ok("no adapter that NCCL opens by verbs")
        return
    if gpus is not None and gpus.present and all(_geforce(g.name, g.brand) for g in gpus.present):
        yield info("GeForce GPUs have no GPUDirect RDMA: data between nodes passes host memory")
        return
    peermem = _peermem(driver)
    if peermem:
        yield ok(f"{', '.join(peermem)} is loaded")
        return
    if not driver.modules and driver.open_module is None:
        yield skip("the loaded kernel modules are not known", enable="mount /proc in the container")
        return
    kernel = version(host.kernel)
    refused = settings(facts).off("NCCL_DMABUF_ENABLE")
    if driver.open_module and kernel is not None and kernel >= DMABUF_KERNEL and not refused:
        yield ok(f"dma-buf: open kernel modules and kernel {host.kernel}")
        return
    if driver.open_module is None or (driver.open_module and kernel is None):
        yield skip("whether the driver's modules are the open ones is not known")
        return
    why_not = "NCCL_DMABUF_ENABLE=0" if refused else f"kernel {host.kernel}"
    if not driver.open_module:
        why_not = "the driver's kernel modules are the closed ones"
    say = fail if job.multi_node(facts, options) else warn
    yield say(
        f"{len(hcas)} RDMA adapters, nvidia_peermem is not loaded, and dma-buf is not possible ({why_not})",
        "nvidia_peermem loaded, or open kernel modules on kernel 5.12 or newer",
        fix=Fix(
            "Load nvidia_peermem now and at every boot",
            "sudo modprobe nvidia-peermem",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
    )


def _geforce(name: str | None, brand: int | None) -> bool:
    return brand == BRAND_GEFORCE or "GeForce" in (name or "")


@check("NET023", Row.NCCL, needs=(Driver, Rdma), uses=(Host,), tags=("net", "rdma", "gpu"))
def two_peer_memory_modules(facts: Facts, options: Options) -> Iterator[Finding]:
    """Two peer-memory modules are loaded, or an obsolete one

    What: nv_peer_mem, the module of old OFED releases, is loaded, alone or beside nvidia_peermem.
    Why: both register as the owner of GPU memory with the RDMA core; which of them pins a buffer depends on
        the load order, and nv_peer_mem is not maintained for current drivers: registration failures and
        invalidations in mid-run follow.
    Fix: remove nv_peer_mem (package nvidia-peer-memory) and load nvidia_peermem.
    Sources: NVIDIA GPUDirect RDMA documentation, driver release notes (nvidia-peermem).
    """
    loaded = _peermem(facts[Driver])
    legacy = [m for m in loaded if m in LEGACY_PEERMEM]
    if not legacy:
        yield ok(", ".join(loaded) or "no peer-memory module is loaded")
        return
    yield warn(
        f"{', '.join(loaded)} {'are' if len(loaded) > 1 else 'is'} loaded",
        "nvidia_peermem alone",
        fix=Fix(
            "Unload the obsolete module and remove its package",
            f"sudo modprobe -r {legacy[0]} && sudo modprobe nvidia-peermem",
            Risk.DISRUPTIVE,
            Owner.ADMIN,
        ),
    )
