"""Which kernel driver holds the GPUs: none, nouveau, or a virtual machine monitor's."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci, PciDevice

HYPERVISOR_DRIVERS = frozenset(("vfio-pci", "pci-stub", "xen-pciback", "nvidia-vgpu-vfio"))
NO_GPU = "PCI lists no NVIDIA GPU"


def _addresses(devices: list[PciDevice]) -> str:
    return ", ".join(d.bdf for d in devices)


@check("GPU001", Row.START, needs=(Pci,), tags=("gpu", "driver"))
def nouveau(facts: Facts, options: Options) -> Iterator[Finding]:
    """The nouveau driver holds a GPU.

    What: looks at the kernel driver that each NVIDIA GPU of the PCI bus is bound to.
    Why: nouveau cannot run CUDA, and while it holds a GPU the NVIDIA driver cannot load for it: torch
        sees no GPU and the job does not start.
    Fix: deny nouveau at boot, rebuild the initial RAM disk, reboot, and install the NVIDIA driver.
    Sources: NVIDIA driver installation guide (disabling nouveau); DCGM software checks (denylist).
    """
    gpus = facts[Pci].gpus
    if not gpus:
        yield skip(NO_GPU)
        return
    held = [d for d in gpus if d.driver == "nouveau"]
    if not held:
        yield ok(f"none of {len(gpus)} NVIDIA GPUs is bound to nouveau")
        return
    yield fail(
        f"nouveau is bound to {len(held)} of {len(gpus)} NVIDIA GPUs ({_addresses(held)})",
        "the kernel driver nvidia",
        subject=Subject(device=held[0].bdf),
        fix=Fix(
            "Deny nouveau, rebuild the initial RAM disk and reboot",
            "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee "
            "/etc/modprobe.d/deny-nouveau.conf && sudo update-initramfs -u && sudo reboot",
            Risk.DISRUPTIVE,
            Owner.ADMIN,
        ),
        evidence=(Evidence(f"/sys/bus/pci/devices/{held[0].bdf}/driver", "nouveau"),),
    )


@check("GPU002", Row.START, needs=(Pci,), uses=(Driver, Gpus, Host), tags=("gpu", "driver"))
def no_driver(facts: Facts, options: Options) -> Iterator[Finding]:
    """The NVIDIA driver is not loaded for a GPU.

    What: PCI lists NVIDIA GPUs; each should be bound to the kernel driver nvidia. A GPU that is reserved
        for virtual machines (vfio-pci) is no fault.
    Why: without the kernel module torch.cuda.is_available() is False and no rank can start.
    Fix: load the module, or install the driver for the running kernel (after a kernel update DKMS must
        have rebuilt it); in a container start it with the NVIDIA runtime.
    Sources: NVIDIA driver installation guide; torch.cuda documentation.
    """
    pci = facts[Pci]
    driver, gpus, host = facts.find(Driver), facts.find(Gpus), facts.find(Host)
    if not pci.gpus:
        yield skip(NO_GPU)
        return
    reserved = [d for d in pci.gpus if d.driver in HYPERVISOR_DRIVERS]
    if reserved:
        yield info(
            f"{len(reserved)} of {len(pci.gpus)} NVIDIA GPUs are reserved for virtual machines "
            f"({reserved[0].driver}: {_addresses(reserved)})",
            expected="training runs inside the guest, or on the other GPUs",
            subject=Subject(device=reserved[0].bdf),
        )
    unbound = [d for d in pci.gpus if d.driver is None]
    modules = driver.modules if driver is not None else ()
    loaded = "nvidia" in modules or (driver is not None and driver.kernel_version is not None)
    if not unbound or gpus is not None:
        if not reserved:
            yield ok(f"{len(pci.gpus)} NVIDIA GPUs have a driver")
        return
    if host is not None and host.container is not None and loaded:
        yield ok("the host's NVIDIA driver is loaded; a container does not show what is bound to it")
        return
    kernel = f" under kernel {host.kernel}" if host is not None and host.kernel else ""
    yield fail(
        f"{len(unbound)} of {len(pci.gpus)} NVIDIA GPUs have no kernel driver ({_addresses(unbound)}); "
        + (
            "the module nvidia is loaded but did not take them"
            if loaded
            else "the module nvidia is not loaded"
        )
        + kernel,
        "every GPU bound to the kernel driver nvidia",
        subject=Subject(device=unbound[0].bdf),
        fix=Fix(
            "Read the NVRM lines of the kernel log: the module refused these GPUs (an unsupported GPU, a "
            "missing firmware, or the closed module on a GPU that needs the open one)"
            if loaded
            else "Load the module; if there is none for this kernel, install the driver or let DKMS build it",
            "sudo dmesg | grep -i nvrm" if loaded else "sudo modprobe nvidia",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
    )
