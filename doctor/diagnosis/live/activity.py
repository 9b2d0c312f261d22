"""Whether a rank's process waits, computes or does nothing, and whether its GPU only waits."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.subjects.stacks import COLLECTIVE, GPU, GpuLoad, RankProcess

WAITS = (COLLECTIVE, GPU)
"""Kinds of places at which a process waits for others."""
IDLE_SECONDS, BUSY_SECONDS = 0.02, 0.3
"""Processor time between two looks below which a process does nothing, and above which it computes."""
BUSY_PERCENT, IDLE_PERCENT = 90, 10
WAITING_POWER = 0.45
"""Share of its power limit below which a busy GPU only waits: a collective's kernel spins."""


def is_waiting(process: RankProcess) -> bool:
    """Whether it stands where a process waits for others."""
    return process.place is not None and process.place.kind in WAITS


def is_idle(process: RankProcess) -> bool:
    """Whether it used no processor between the looks."""
    return process.cpu_seconds is not None and process.cpu_seconds < IDLE_SECONDS


def is_busy(process: RankProcess) -> bool:
    """Whether it computed between the looks."""
    return (process.cpu_seconds or 0.0) > BUSY_SECONDS


def activity(process: RankProcess) -> str:
    """Such as `process 4711, its stack changes; it computes`."""
    used = "; it computes" if is_busy(process) else "; it uses no processor" if is_idle(process) else ""
    moves = "its stack changes" if process.moving else "its stack does not change"
    return f"process {process.pid}, {moves}{used}"


def spinning(gpus: Sequence[GpuLoad]) -> list[GpuLoad]:
    """GPUs that run a kernel all the time and use little power for it."""
    return [
        g
        for g in gpus
        if (g.utilisation or 0) >= BUSY_PERCENT
        and g.power is not None
        and g.limit
        and g.power < WAITING_POWER * g.limit
    ]


def idle(gpus: Sequence[GpuLoad]) -> list[GpuLoad]:
    """GPUs of known ranks that run hardly any kernel."""
    return [g for g in gpus if g.utilisation is not None and g.utilisation < IDLE_PERCENT and g.ranks]


def loads(gpus: Sequence[GpuLoad], most: int = 8) -> str:
    """Such as `GPU 0 is 100 % busy at 130 W of 700 W (a kernel that waits, as a collective does)`."""
    waits = " (a kernel that waits, as a collective does)" if spinning(gpus) else ""
    return ", ".join(map(_load, gpus[:most])) + waits


def _load(gpu: GpuLoad) -> str:
    busy = f"{gpu.utilisation} % busy" if gpu.utilisation is not None else "utilisation not known"
    power = f" at {gpu.power:.0f} W of {gpu.limit:.0f} W" if gpu.power is not None and gpu.limit else ""
    return f"GPU {gpu.index} is {busy}{power}"
