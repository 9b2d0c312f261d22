"""Fixes that several GPU checks give."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.findings import Finding, Fix, Owner, Risk, skip
from fsdp_doctor.subjects.gpu import Gpu


def ids(gpus: Sequence[Gpu]) -> str:
    """NVML indices as nvidia-smi -i takes them."""
    return ",".join(str(g.index) for g in gpus)


def reset(gpus: Sequence[Gpu], text: str = "Stop all processes on the GPU and reset it, or reboot") -> Fix:
    """A GPU reset; on NVSwitch boards nvidia-smi resets the connected GPUs together."""
    return Fix(text, f"sudo nvidia-smi --gpu-reset -i {ids(gpus)}", Risk.DISRUPTIVE, Owner.ADMIN)


def replace_gpu(text: str) -> Fix:
    """Service by the vendor."""
    return Fix(text, "sudo nvidia-bug-report.sh", Risk.NEEDS_ROOT, Owner.HARDWARE)


def setting(text: str, command: str) -> Fix:
    """A setting of the driver that root changes while the GPU is idle."""
    return Fix(text, command, Risk.NEEDS_ROOT, Owner.ADMIN)


def unanswered(gpus: Sequence[Gpu], function: str, what: str) -> Finding:
    """The skip for a field that no GPU answered, with NVML's error."""
    errors = sorted({e for g in gpus if (e := g.errors.get(function)) is not None})
    reason = f"NVML: {', '.join(errors)}" if errors else "NVML was not asked"
    return skip(f"{what} is not known ({reason})")
