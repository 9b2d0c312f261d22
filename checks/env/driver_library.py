"""The driver's libraries against its kernel module: versions, cuda-compat, and whether they load at all."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.env._driver import compat_version, consumer_gpus, mismatched, user_mode
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import (
    Evidence,
    Finding,
    Fix,
    Owner,
    Risk,
    Row,
    Subject,
    fail,
    info,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.cuda_drivers import COMPAT_BASES, RECOMMENDED_BRANCH
from fsdp_doctor.tables.cuda_errors import COMPAT_UNSUPPORTED, DRIVER_MISMATCH, number_of
from fsdp_doctor.tables.nccl_releases import CUMEM_HOST_DEFAULT, CUMEM_HOST_SELF_CHECK
from fsdp_doctor.tables.versions import at_least, parse

CONTROL = "/dev/nvidiactl"
RELOAD = Fix(
    "Reboot, or stop every GPU process and reload the NVIDIA modules, so that kernel and libraries agree",
    "sudo systemctl stop nvidia-persistenced; sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
    "sudo modprobe nvidia",
    Risk.DISRUPTIVE,
    Owner.ADMIN,
)
IMAGE = Fix(
    "Remove libcuda and libnvidia-ml from the image: the NVIDIA runtime mounts those of the host",
    None,
    Risk.DISRUPTIVE,
    Owner.YOU,
)


@check("ENV003", Row.START, needs=(Driver,), uses=(Stack, Torch, Host), tags=("driver",))
def library_mismatch(facts: Facts, options: Options) -> Iterator[Finding]:
    """Driver libraries and kernel module are of different versions.

    What: compares the loaded kernel module with the libcuda that a process loads, and reads NVML's own
        complaint (LibRmVersionMismatch, "Driver/library version mismatch").
    Why: after an update without a reboot, or with libcuda baked into an image, neither CUDA (error 803)
        nor NVML starts, and no rank gets a GPU.
    Fix: reload the modules or reboot; in a container leave libcuda to the NVIDIA runtime.
    Sources: NVML API reference (NVML_ERROR_LIB_RM_VERSION_MISMATCH); CUDA runtime API (error 803).
    """
    driver, stack, torch, host = facts[Driver], facts.find(Stack), facts.find(Torch), facts.find(Host)
    library = user_mode(driver, stack, torch)
    kernel = driver.kernel_version
    nvml = driver.nvml_error == "LibRmVersionMismatch"
    cuda = torch is not None and number_of(torch.cuda_error) == DRIVER_MISMATCH
    if nvml or cuda or mismatched(driver, library):
        version = (library.version if library is not None else None) or driver.library_version
        said = "NVML: LibRmVersionMismatch" if nvml else "CUDA error 803" if cuda else ""
        yield fail(
            f"kernel module {kernel or 'of another version'}, libcuda {version or 'of another version'}"
            + (f" at {library.path}" if library is not None else "")
            + (f" ({said}: driver/library version mismatch)" if said else ""),
            "libcuda and libnvidia-ml of the version of the loaded kernel module",
            subject=Subject(device="nvidia driver", path=library.path if library is not None else None),
            fix=IMAGE if host is not None and host.container is not None else RELOAD,
        )
    elif kernel is None:
        yield skip("the kernel module's version is not known", enable="load the NVIDIA kernel module")
    elif library is None:
        yield skip("which libcuda a process loads is not known", enable="install torch, or see ENV005")
    else:
        yield ok(f"kernel module {kernel}, libcuda {library.version or 'without a version in its name'}")


@check("ENV004", Row.START, needs=(Driver,), uses=(Stack, Torch, Gpus), tags=("driver", "cuda"))
def forward_compatibility(facts: Facts, options: Options) -> Iterator[Finding]:
    """Forward compatibility (cuda-compat) is in use, or tried where it cannot work.

    What: the libcuda that a process loads lies in a compat folder and is newer than the kernel module.
    Why: this runs a newer CUDA on an older driver, on data-centre GPUs only: on GeForce and Titan CUDA
        stops with error 804. NCCL 2.24 to 2.26.4 misjudges the driver by it and may switch on host memory
        by cuMem that the kernel module does not have.
    Fix: take the compat folder out of LD_LIBRARY_PATH on GeForce; elsewhere upgrade the driver when
        possible.
    Sources: CUDA compatibility guide (forward compatibility); NCCL user guide (runtime issues).
    """
    driver, stack, torch = facts[Driver], facts.find(Stack), facts.find(Torch)
    library = user_mode(driver, stack, torch)
    kernel = parse(driver.version)
    # CUDA also says 804 where an update left the old kernel module loaded: no compat library is there then.
    stale = mismatched(driver, library) or driver.nvml_error == "LibRmVersionMismatch"
    error = torch is not None and number_of(torch.cuda_error) == COMPAT_UNSUPPORTED and not stale
    if compat_version(kernel, library) is None and not error:
        if library is None:
            yield skip("which libcuda a process loads is not known", enable="install torch, or see ENV005")
        else:
            yield ok(f"libcuda is the driver's own: {library.path}")
        return
    path = library.path if library is not None else "a compat folder"
    version = (library.version if library is not None else None) or "of a cuda-compat package"
    found = f"libcuda {version} at {path} over kernel module {driver.version}"
    consumer = consumer_gpus(facts.find(Gpus))
    if consumer or error:
        yield fail(
            f"{found}: cuda-compat on a GPU that does not support it (CUDA error 804)",
            f"the driver's own libcuda {driver.version} on GeForce and Titan",
            subject=Subject(gpu=consumer or None, path=library.path if library is not None else None),
            fix=Fix(
                "Take the compat folder out of LD_LIBRARY_PATH, or uninstall cuda-compat, and upgrade the "
                f"driver to R{RECOMMENDED_BRANCH} if torch needs a newer CUDA",
                "unset LD_LIBRARY_PATH",
            ),
        )
        return
    if kernel is not None and kernel[0] not in COMPAT_BASES:
        yield warn(
            f"{found}: R{kernel[0]} is no base for forward compatibility",
            "a long-term-support or production branch below cuda-compat",
            subject=Subject(path=path),
            fix=Fix(f"Upgrade the driver to R{RECOMMENDED_BRANCH}", None, Risk.NEEDS_ROOT, Owner.ADMIN),
        )
        return
    nccl = parse(torch.nccl_runtime or torch.nccl) if torch is not None else None
    host_memory = (
        nccl is not None and at_least(nccl, CUMEM_HOST_DEFAULT) and not at_least(nccl, CUMEM_HOST_SELF_CHECK)
    )
    yield info(
        f"forward compatibility: {found}",
        expected="if NCCL fails to allocate at init, set NCCL_CUMEM_HOST_ENABLE=0" if host_memory else "",
        subject=Subject(path=path),
    )


@check("ENV005", Row.START, needs=(Driver, Stack), uses=(Torch, Host, Gpus), tags=("driver",))
def driver_library_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """A library of the driver cannot be loaded although the driver runs.

    What: the kernel module is loaded, and the dynamic loader finds no libcuda.so.1 or libnvidia-ml.so.1.
    Why: torch needs the first to see any GPU, NCCL the second to read the topology. Containers started
        without the NVIDIA runtime, or with NVIDIA_DRIVER_CAPABILITIES that lacks `compute`, show this.
    Fix: start the container with the NVIDIA runtime, or install the driver's compute libraries of the
        very same version.
    Sources: NVIDIA container toolkit documentation (driver capabilities); DCGM software checks.
    """
    driver, stack, torch, host = facts[Driver], facts[Stack], facts.find(Torch), facts.find(Host)
    if driver.kernel_version is None:
        yield skip("the NVIDIA kernel module is not loaded")
        return
    asked = [n for n in ("libcuda.so.1", "libnvidia-ml.so.1") if n in stack.dlopen]
    if not asked:
        yield skip("the loader was not asked for the driver's libraries")
        return
    missing = [n for n in asked if stack.dlopen[n] is None]
    if "libnvidia-ml.so.1" in missing and driver.nvml_error == "LibraryNotFound":
        missing.remove("libnvidia-ml.so.1")  # NVML's own start says it already
        if not missing:
            yield skip("libnvidia-ml.so.1 is missing: NVML did not start (GPU004)")
            return
    linked = [p for p in (torch.libraries if torch is not None else ()) if _linked_elsewhere(p)]
    if missing == ["libcuda.so.1"] and linked:
        yield ok(f"torch finds libcuda by its own run path: {linked[0]}")
        return
    if not missing:
        yield ok(", ".join(f"{n}: {stack.dlopen[n]}" for n in asked))
        return
    container = host.container if host is not None else None
    if (
        container is not None
        and facts.find(Gpus) is None
        and host is not None
        and CONTROL not in host.device_nodes
    ):
        yield skip(f"this container was started without GPUs: no {CONTROL} either (HST032)")
        return
    yield fail(
        f"the loader finds no {' and no '.join(missing)}; kernel module {driver.kernel_version} is loaded"
        + (f" (in a {container} container)" if container else ""),
        f"the libraries of driver {driver.kernel_version} on the loader's path",
        subject=Subject(path=missing[0]),
        fix=Fix(
            "Start the container with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
            Risk.DISRUPTIVE,
        )
        if container
        else Fix(
            f"Install the driver's compute libraries in version {driver.kernel_version} and run ldconfig",
            "ldconfig -p | grep -E 'libcuda|libnvidia-ml'",
            Risk.SAFE,
            Owner.ADMIN,
        ),
        evidence=(Evidence("loader", f"dlopen of {', '.join(missing)} failed"),),
    )


def _linked_elsewhere(path: str) -> bool:
    """A libcuda outside the loader's folders that torch was linked to, as on NixOS."""
    return "libcuda.so" in path and path.startswith(("/run/opengl-driver/", "/nix/", "/gnu/"))
