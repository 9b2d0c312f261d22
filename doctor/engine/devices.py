"""What checks on GPUs and links share: naming devices, comparing addresses, knowing what is restricted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from fsdp_doctor.findings import Subject
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.scheduler import Scheduler

T = TypeVar("T")
RESTRICTION_USES: tuple[type[object], ...] = (Host, Environment, Scheduler)
"""What a check that calls `restriction` adds to its `uses`."""
MACHINE_USES: tuple[type[object], ...] = (Host, Gpus)
"""What a check that calls `virtual_machine` adds to its `uses`."""
ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?\Z", re.IGNORECASE)
GUEST_MODES = frozenset((1, 2))
"""NVML virtualisation modes passthrough and vGPU."""


def gpu_words(gpus: Sequence[Gpu]) -> str:
    """Such as "GPU 3" or "GPUs 0, 3"."""
    return f"GPU{'s' if len(gpus) != 1 else ''} {', '.join(str(g.index) for g in gpus)}"


def counted(items: int | Sequence[object]) -> str:
    """Such as "1 GPU" or "8 GPUs"."""
    number = items if isinstance(items, int) else len(items)
    return f"{number} GPU{'s' if number != 1 else ''}"


def gpu_subject(gpus: Sequence[Gpu]) -> Subject:
    """The subject of a finding about these GPUs; the PCI address too where it is a single one."""
    if len(gpus) == 1:
        return Subject(gpu=gpus[0].index, device=gpus[0].bdf)
    return Subject(gpu=tuple(g.index for g in gpus))


def by_value(items: Iterable[tuple[Gpu, T]]) -> dict[T, list[Gpu]]:
    """GPUs grouped by what was found on them, in the order of first sight."""
    groups: dict[T, list[Gpu]] = {}
    for gpu, value in items:
        groups.setdefault(value, []).append(gpu)
    return groups


def address(bdf: str | None) -> tuple[int, int, int] | None:
    """Domain, bus and device of 0000:d1:00.0, 0000:D1:00, 00000000:d1:00.0 or d1:00; None if it is none."""
    match = ADDRESS.match(bdf.strip().removeprefix("PCI:")) if bdf else None
    if match is None:
        return None
    domain, bus, device = match.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


def at_address(gpus: Iterable[Gpu], bdf: str | None) -> Gpu | None:
    """The GPU at a PCI address, in whatever form it is written."""
    wanted = address(bdf)
    if wanted is None:
        return None
    return next((g for g in gpus if address(g.bdf) == wanted), None)


def used(gpus: Gpus) -> tuple[Gpu, ...]:
    """The GPUs with a handle that CUDA_VISIBLE_DEVICES leaves to this process."""
    if gpus.visible is None:
        return gpus.present
    return tuple(g for g in gpus.present if g.index in gpus.visible)


def restriction(facts: Facts) -> str | None:
    """Why this process may see fewer GPUs than the node has; None where nothing restricts it."""
    host, env, scheduler = facts.find(Host), facts.find(Environment), facts.find(Scheduler)
    if host is None:
        return "what this process may see is not known"
    if host.container is not None:
        return f"a {host.container} container"
    if env is not None and env.get("NVIDIA_VISIBLE_DEVICES") not in (None, "", "all"):
        return "NVIDIA_VISIBLE_DEVICES"
    if scheduler is not None and scheduler.resource_manager is not None:
        return f"a {scheduler.resource_manager} job"
    if any(re.fullmatch(r"/dev/nvidia\d+", n) for n in host.unreadable_nodes):
        return "device nodes that this user may not open"
    return None


def virtual_machine(facts: Facts) -> bool | None:
    """Whether this is a guest of a hypervisor; None where nothing says."""
    host, gpus = facts.find(Host), facts.find(Gpus)
    if host is not None and host.hypervisor:
        return True
    modes = [g.virtualization_mode for g in gpus.present] if gpus is not None else []
    if any(m in GUEST_MODES for m in modes):
        return True
    return host.hypervisor if host is not None else None
