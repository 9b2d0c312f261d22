"""How the driver, the libcuda that is loaded and the CUDA of torch stand to each other."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from fsdp_doctor.checks.env._stack import torch_cuda
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.cuda_drivers import Fit, fit, is_consumer, toolkit_driver
from fsdp_doctor.tables.versions import Version, at_least, parse, same

LIBCUDA = re.compile(r"libcuda\.so\.([0-9]{3}\.[0-9.]{1,20})\Z")


@dataclass(frozen=True, slots=True)
class UserMode:
    """The libcuda that a process loads: its file, its version and whether it is a cuda-compat package's."""

    path: str
    version: str | None
    compat: bool


def user_mode(driver: Driver, stack: Stack | None, torch: Torch | None) -> UserMode | None:
    """What torch mapped, else what the loader finds; a compat library is named first if either is one."""
    mapped = [p for p in torch.libraries if _is_libcuda(p)] if torch is not None else []
    found = stack.dlopen.get("libcuda.so.1") if stack is not None else None
    paths = [*mapped, *([found] if found else [])]
    if not paths:
        return None
    path = next((p for p in paths if _is_compat(p)), paths[0])
    named = LIBCUDA.search(path)
    version = named.group(1) if named else None
    if version is None and not _is_compat(path):
        version = driver.library_version
    return UserMode(path, version, _is_compat(path))


def _is_libcuda(path: str) -> bool:
    return posixpath.basename(path).startswith("libcuda.so")


def _is_compat(path: str) -> bool:
    return "/compat/" in path or "/compat_" in path or "/cuda-compat" in path


@dataclass(frozen=True, slots=True)
class CudaFit:
    """The verdict on driver and CUDA; `driver` is the version judged, or that of a compat library in use."""

    fit: Fit
    driver: Version
    text: str
    cuda: Version
    by_compat: bool = False


def cuda_fit(facts: Facts) -> CudaFit | None:
    """Judge the driver against the CUDA of the installed torch; None where either is not known."""
    driver, stack, torch = facts.find(Driver), facts.find(Stack), facts.find(Torch)
    cuda = torch_cuda(stack, torch)
    if driver is None or cuda is None:
        return None
    kernel = parse(driver.version)
    if kernel is None:
        return None
    library = user_mode(driver, stack, torch)
    newer = compat_version(kernel, library)
    if newer is not None and library is not None and not consumer_gpus(facts.find(Gpus)):
        return CudaFit(fit(newer, cuda), newer, library.version or "", cuda, True)
    return CudaFit(fit(kernel, cuda), kernel, driver.version or "", cuda)


def compat_version(kernel: Version | None, library: UserMode | None) -> Version | None:
    """The version of a compat library that is newer than the kernel module; None where none is in use."""
    version = parse(library.version) if library is not None and library.compat else None
    if version is None or kernel is None or at_least(kernel, version):
        return None
    return version


def mismatched(driver: Driver, library: UserMode | None) -> bool:
    """Whether libcuda and the kernel module are of two releases and no compat package explains it."""
    kernel = parse(driver.kernel_version)
    version = parse(library.version) if library is not None else None
    if kernel is None or version is None or library is None:
        return False
    if library.compat:
        return not at_least(version, kernel)
    return not same(kernel, version)


def consumer_gpus(gpus: Gpus | None) -> tuple[int, ...]:
    """Indices of GeForce and Titan GPUs."""
    if gpus is None:
        return ()
    return tuple(g.index for g in gpus.present if is_consumer(g.name, g.brand))


def ptx_is_refused(facts: Facts) -> bool:
    """Whether this driver cannot compile PTX of torch's toolkit."""
    verdict = cuda_fit(facts)
    if verdict is None or verdict.fit is not Fit.MINOR:
        return False
    return parse(toolkit_driver(verdict.cuda)) is not None
