"""torch without CUDA at run time, although the GPUs and a CUDA build are there."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.env._driver import compat_version, consumer_gpus, cuda_fit, mismatched, user_mode
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables import cuda_errors
from fsdp_doctor.tables.cuda_drivers import Fit
from fsdp_doctor.tables.cuda_errors import MEANINGS, number_of
from fsdp_doctor.tables.versions import parse

UNFINISHED = (1, 2)
"""Fabric states not started and in progress."""
COMPLETED = 3
PROHIBITED = 2
UVM = "/dev/nvidia-uvm"
MANAGER = "nv-fabricmanag"
"""The kernel keeps 15 characters of a process name."""


@check(
    "ENV016", Row.START, needs=(Gpus, Torch), uses=(Stack, Driver, Host, Pci), tags=("torch", "cuda", "gpu")
)
def cuda_unavailable(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch finds no CUDA although NVML lists GPUs.

    What: torch is a CUDA build and torch.cuda.is_available() is False; its own message is read for the
        error number. Causes that a check of their own names are left to it.
    Why: every rank fails at torch.cuda.set_device or silently runs on the CPU.
    Fix: it follows from the error: see the driver, the device nodes, or the processes on the GPUs.
    Sources: CUDA runtime API (error numbers); pytorch#35710.
    """
    torch, gpus = facts[Torch], facts[Gpus]
    if torch.cuda is None:
        yield skip("torch is built without CUDA")
        return
    if torch.cuda_available is None:
        yield skip("torch was not asked whether CUDA is available")
        return
    if torch.cuda_available:
        yield ok(f"torch sees {torch.device_count} of {len(gpus.devices)} GPUs")
        return
    elsewhere = _explained(facts)
    if elsewhere is not None:
        yield skip(f"CUDA is not available because {elsewhere}")
        return
    number = number_of(torch.cuda_error)
    meaning = MEANINGS.get(number) if number is not None else None
    said = torch.cuda_error
    yield fail(
        f"torch {torch.version} finds no CUDA device; NVML lists {len(gpus.devices)} GPUs"
        + (f": error {number}, {meaning.text}" if meaning is not None else f": {said[:300]}" if said else ""),
        "torch.cuda.is_available() is True",
        fix=Fix(
            meaning.fix if meaning is not None else "Run nvidia-smi, and read dmesg for NVRM and Xid lines",
            "nvidia-smi -L; sudo dmesg | grep -i nvrm | tail",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
        evidence=(Evidence("torch", said),) if said else (),
    )


def _explained(facts: Facts) -> str | None:
    """The cause, where another check reports it."""
    torch, gpus = facts[Torch], facts[Gpus]
    driver, stack, host = facts.find(Driver), facts.find(Stack), facts.find(Host)
    number = number_of(torch.cuda_error)
    if gpus.visible == ():
        return "CUDA_VISIBLE_DEVICES leaves no GPU (GPU007)"
    lost = [g.index for g in gpus.devices if g.lost is not None]
    if lost:
        return f"GPU {', '.join(map(str, lost))} cannot be reached by NVML"
    if driver is not None:
        verdict = cuda_fit(facts)
        if verdict is not None and verdict.fit is Fit.TOO_OLD:
            return f"driver {verdict.text} is too old (ENV001)"
        library = user_mode(driver, stack, torch)
        if number == cuda_errors.DRIVER_MISMATCH or mismatched(driver, library):
            return "libcuda and the kernel module are of different versions (ENV003)"
        if number == cuda_errors.COMPAT_UNSUPPORTED or (
            compat_version(parse(driver.version), library) is not None and consumer_gpus(gpus)
        ):
            return "cuda-compat is loaded on a GPU that does not support it (ENV004)"
        asked = stack is not None and "libcuda.so.1" in stack.dlopen
        if asked and stack is not None and stack.dlopen["libcuda.so.1"] is None and driver.kernel_version:
            return "libcuda.so.1 cannot be loaded (ENV005)"
    if any(_without_fabric(g) for g in gpus.present):
        return "the NVLink fabric is not initialised (LNK004)"
    if number == cuda_errors.NOT_INITIALIZED and _manager_absent(host, facts.find(Pci)):
        return "the fabric manager does not run (LNK006)"
    if gpus.present and all(g.compute_mode == PROHIBITED for g in gpus.present):
        return "every GPU is in compute mode prohibited"
    if host is not None and host.device_nodes and UVM not in host.device_nodes:
        return f"{UVM} is missing (HST031)"
    return None


def _without_fabric(gpu: Gpu) -> bool:
    """Whether the fabric of a GPU is not set up, or ended its setup with an error."""
    fabric = gpu.fabric
    if fabric is None:
        return False
    return fabric.state in UNFINISHED or (fabric.state == COMPLETED and bool(fabric.status))


def _manager_absent(host: Host | None, pci: Pci | None) -> bool:
    """Whether the check of the fabric manager sees this host without one."""
    if host is None or pci is None or host.container is not None or not pci.nvswitches:
        return False
    return not any(p.name.startswith(MANAGER) for p in host.processes)
