"""Readings of the Python environment that several checks share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from fsdp_doctor.findings import Fix, Risk
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.gpu_architectures import Capability
from fsdp_doctor.tables.torch_releases import INDEX, cuda_of_tag, fitting_tag, release_of
from fsdp_doctor.tables.versions import Version, is_prerelease, local_tag, parse

NCCL_WHEEL = re.compile(r"nvidia-nccl-cu[0-9]{2}\Z")
CUDA_PIN = re.compile(
    r"(?:nvidia-cuda-runtime-cu[0-9]{2}|cuda-toolkit(?:\[[\w,. -]*\])?)\s*\(?==\s*([0-9]+\.[0-9]+)"
)


def torch_version(stack: Stack | None, torch: Torch | None) -> str | None:
    """The version that was imported, else the one that is installed."""
    if torch is not None:
        return torch.version
    return stack.dists.get("torch") if stack is not None else None


def torch_cuda(stack: Stack | None, torch: Torch | None) -> Version | None:
    """CUDA (major, minor) that torch is built for, even where its import failed; None for CPU and ROCm."""
    if torch is not None:
        return _two(parse(torch.cuda))
    if stack is None or "torch" not in stack.dists:
        return None
    version = stack.dists["torch"]
    tag = local_tag(version)
    if tag is not None:
        return cuda_of_tag(tag)
    for line in stack.requires.get("torch", ()):
        pin = CUDA_PIN.match(line)
        if pin:
            return _two(parse(pin.group(1)))
    if not nccl_wheels(stack.dists):
        return None
    release = release_of(version)
    return cuda_of_tag(release.default) if release is not None and not is_prerelease(version) else None


def _two(version: Version | None) -> Version | None:
    return version[:2] if version is not None and len(version) >= 2 else None


def nccl_wheels(dists: Mapping[str, str]) -> dict[str, str]:
    """Installed NCCL wheels by name: nvidia-nccl-cu12, nvidia-nccl-cu13."""
    return {name: dists[name] for name in sorted(dists) if NCCL_WHEEL.match(name)}


def from_pip_wheel(stack: Stack, torch: Torch | None) -> bool:
    """Whether torch is a wheel of PyPI or download.pytorch.org, and not a conda or source build."""
    if any(line.startswith(("nvidia-", "cuda-toolkit")) for line in stack.requires.get("torch", ())):
        return True
    tag = local_tag(stack.dists.get("torch")) or local_tag(torch.version if torch is not None else None)
    return tag == "cpu" or cuda_of_tag(tag) is not None


def machine(stack: Stack | None) -> str:
    """x86_64 or aarch64, from a platform such as linux-aarch64."""
    platform = (stack.platform or "").lower() if stack is not None else ""
    return "aarch64" if platform.endswith(("aarch64", "arm64")) else "x86_64"


def capabilities(gpus: Gpus | None) -> tuple[Capability, ...]:
    """Distinct compute capabilities of the GPUs that CUDA would show."""
    if gpus is None:
        return ()
    shown = [g for g in gpus.present if gpus.visible is None or g.index in gpus.visible]
    return tuple(sorted({g.capability for g in shown if g.capability is not None}))


def pip(stack: Stack | None) -> str:
    """`/opt/venv/bin/python -m pip`, ready for a shell."""
    return f"{shlex.quote(stack.executable if stack is not None else 'python')} -m pip"


def base(version: str) -> str:
    """A version without its local tag."""
    return version.split("+", 1)[0]


def reinstall(text: str, stack: Stack | None, version: str | None, tag: str | None = None) -> Fix:
    """A fix that installs a torch release again, from an index if one is named."""
    wanted = f"torch=={shlex.quote(base(version))}" if version and not is_prerelease(version) else "torch"
    command = f"{pip(stack)} install --force-reinstall {wanted}"
    if tag is not None:
        command += f" --index-url {INDEX}{tag}"
    return Fix(text, command, Risk.DISRUPTIVE)


def fitting_index(
    stack: Stack | None, version: str | None, driver: Version | None, gpus: Iterable[Capability]
) -> str | None:
    """The index of a wheel of the same release that runs on this driver and these GPUs."""
    return fitting_tag(version, driver, gpus, machine(stack))
