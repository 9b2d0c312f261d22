"""NVML, the library through which everything asks about GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.devices import counted
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, skip
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci

NO_GPUS_WANTED = frozenset(("void", "none"))
CONTROL = "/dev/nvidiactl"
FIXES = {
    "DriverNotLoaded": (
        "Load the kernel module and read why it failed",
        "sudo modprobe nvidia; sudo dmesg | tail",
    ),
    "LibraryNotFound": (
        "Install the driver's libraries (libnvidia-ml.so.1)",
        "ldconfig -p | grep libnvidia-ml",
    ),
    "NoPermission": ("Give this user access to the device nodes", "ls -l /dev/nvidia*"),
    "GpuIsLost": ("Reboot the node: a GPU has left the bus", "sudo dmesg | grep -i xid"),
    "IrqIssue": ("Check the interrupts and the power cables of the GPU", "sudo dmesg | grep -i nvrm"),
}
OTHER = ("Run nvidia-smi and read the NVRM lines of the kernel log", "nvidia-smi; sudo dmesg | grep -i nvrm")


@check("GPU004", Row.START, needs=(Pci,), uses=(Driver, Gpus, Host, Environment), tags=("gpu", "driver"))
def nvml_start(facts: Facts, options: Options) -> Iterator[Finding]:
    """NVML does not start although GPUs are there.

    What: PCI lists NVIDIA GPUs that have a driver, and NVML either fails at its start or counts none.
    Why: NVML starts wherever CUDA can. When it does not, no rank gets a GPU and NCCL cannot read the
        topology.
    Fix: it depends on NVML's error: load the module, install the libraries, give the container the
        NVIDIA runtime, or correct permissions.
    Sources: NVML API reference (return codes); NVIDIA container toolkit documentation.
    """
    pci, driver, gpus = facts[Pci], facts.find(Driver), facts.find(Gpus)
    host, env = facts.find(Host), facts.find(Environment)
    if not pci.gpus:
        yield skip("PCI lists no NVIDIA GPU")
        return
    if gpus is not None:
        yield ok(f"NVML answers for {counted(gpus.devices)}")
        return
    container = host.container if host is not None else None
    ours = [d for d in pci.gpus if d.driver == "nvidia" or (d.driver is None and container is not None)]
    if not ours:
        yield skip("no GPU is bound to the NVIDIA driver, so NVML has nothing to start on")
        return
    error = driver.nvml_error if driver is not None else None
    unknown = facts.fact(Gpus)
    reason = getattr(unknown, "reason", "")
    wanted = env.get("NVIDIA_VISIBLE_DEVICES") if env is not None else None
    if container is not None and wanted in NO_GPUS_WANTED:
        yield info(f"this container was started without GPUs (NVIDIA_VISIBLE_DEVICES={wanted})")
        return
    if host is not None and container is not None and CONTROL not in host.device_nodes:
        yield skip(f"this container was started without GPUs: it has no {CONTROL} (HST032)")
        return
    if error == "LibRmVersionMismatch":
        yield info("NVML did not start: LibRmVersionMismatch, its library is not of the loaded kernel module")
        return
    if error is None and "counts no GPU" not in reason and "cannot count" not in reason:
        yield skip(f"NVML was not asked: {reason}")
        return
    text, command = FIXES.get(error or "", OTHER)
    if container is not None and error in ("LibraryNotFound", "DriverNotLoaded"):
        text, command = "Start the container with the NVIDIA runtime", "docker run --gpus all …"
    yield fail(
        f"NVML {f'did not start: {error}' if error else 'counts no GPU'}; "
        f"PCI lists {len(pci.gpus)} NVIDIA GPUs"
        + (f" (in a {container} container)" if container is not None else ""),
        f"NVML starts and counts {counted(ours)}",
        fix=Fix(text, command, Risk.NEEDS_ROOT, Owner.ADMIN),
        evidence=(Evidence("NVML", reason or error or ""),),
    )
