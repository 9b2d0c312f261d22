"""Small readings of facts that several checks of the machine share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.engine.job import visible_gpus
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.host_thresholds import TRAINING_NAMES

DAY = 86_400.0
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


def youngest_age(times: Iterable[float | None], host: Host | None) -> float | None:
    """Seconds since the last of some events, given in seconds since boot; None where one is not known."""
    known = list(times)
    last = max((t for t in known if t is not None), default=None)
    if host is None or host.uptime is None or last is None or None in known:
        return None
    return max(host.uptime - last, 0.0)


def age_words(age: float | None) -> str:
    """Such as ", the last 3 days ago"; "" where it is not known."""
    if age is None or not age < 1e12:
        return ""
    for scale, name in ((DAY, "day"), (3600.0, "hour"), (60.0, "minute")):
        if age >= scale:
            count = int(age // scale)
            return f", the last {count} {name}{'s' if count != 1 else ''} ago"
    return ", the last less than a minute ago"
