"""Small readings of facts that several checks of the machine share."""

from __future__ import annotations

import re

from fsdp_doctor.engine.job import visible_gpus
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.host_thresholds import TRAINING_NAMES

OFF = frozenset({"1", "true", "yes", "on"})


def version(text: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version, such as (2, 27, 5); None where it has none."""
    match = re.match(r"\d{1,9}(?:\.\d{1,9}){0,3}", (text or "").strip())
    return tuple(int(part) for part in match.group().split(".")) if match else None


def nccl_version(facts: Facts) -> str | None:
    """The NCCL that ranks would load: as mapped, else the installed wheel, else torch's own constant."""
    torch, stack = facts.find(Torch), facts.find(Stack)
    if torch is not None and torch.nccl_runtime:
        return torch.nccl_runtime
    wheels = [v for k, v in (stack.dists if stack else {}).items() if k.startswith("nvidia-nccl-cu")]
    if len(wheels) == 1:
        return wheels[0]
    return torch.nccl if torch is not None else None


def has_capability(host: Host, bit: int) -> bool:
    """Whether CapEff holds a capability; false where it is not known."""
    return host.capabilities is not None and host.capabilities >= 0 and bool(host.capabilities >> bit & 1)


def is_set(facts: Facts, name: str) -> bool:
    """Whether NCCL would read a switch as on."""
    environment = facts.find(Environment)
    return environment is not None and (environment.nccl(name) or "").strip().lower() in OFF


def trains(name: str) -> bool:
    """Whether a process of this name looks like part of a training run."""
    return name.strip("()").lower().startswith(TRAINING_NAMES)


def has_gpus(facts: Facts) -> bool:
    """Whether this environment shows a GPU to CUDA."""
    return visible_gpus(facts) > 0


def limit_text(value: int | None) -> str:
    """A resource limit in words."""
    return "unlimited" if value is None else str(value)
