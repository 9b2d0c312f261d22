"""Open or proprietary kernel module."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.tables.gpu_architectures import is_blackwell


@check("ENV007", Row.START, needs=(Driver,), uses=(Gpus, Pci), tags=("driver",))
def kernel_module_flavour(facts: Facts, options: Options) -> Iterator[Finding]:
    """Proprietary kernel module under a GPU that needs the open one.

    What: reads which flavour of the kernel module is loaded, and whether a Blackwell GPU is there.
    Why: Blackwell GPUs run on the open kernel modules only: the proprietary one leaves them without a
        driver. On older GPUs both work, and GPUDirect RDMA over dma-buf needs the open one.
    Fix: install the open flavour of the same driver version (nvidia-open, nvidia-driver-…-open).
    Sources: NVIDIA driver README (open Linux kernel modules); NCCL user guide (GPUDirect RDMA).
    """
    driver, gpus, pci = facts[Driver], facts.find(Gpus), facts.find(Pci)
    if driver.kernel_version is None or driver.open_module is None:
        yield skip("which flavour of the kernel module is loaded is not known")
        return
    if driver.open_module:
        yield ok(f"open kernel module {driver.kernel_version}")
        return
    indices = tuple(g.index for g in gpus.present if is_blackwell(g.capability)) if gpus is not None else ()
    devices = tuple(d.bdf for d in pci.gpus if is_blackwell(None, d.device)) if pci is not None else ()
    if not indices and not devices:
        yield info(
            f"proprietary kernel module {driver.kernel_version}",
            expected="fine for these GPUs; GPUDirect RDMA by dma-buf needs the open one, else nvidia-peermem",
        )
        return
    yield fail(
        f"proprietary kernel module {driver.kernel_version}, {len(indices) or len(devices)} Blackwell GPUs",
        "the open kernel module: Blackwell has no other",
        subject=Subject(gpu=indices[0] if len(indices) == 1 else indices or None)
        if indices
        else Subject(device=", ".join(devices)),
        fix=Fix(
            f"Install the open flavour of driver {driver.kernel_version} and reboot",
            "sudo apt install nvidia-open",
            Risk.DISRUPTIVE,
            Owner.ADMIN,
        ),
    )
