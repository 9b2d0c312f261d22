"""What a snapshot of CUDA memory says in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.diagnosis.oom import words
from fsdp_doctor.subjects.memory_snapshot import DeviceMemory, MemorySnapshot, TracedOom

SHOWN = 5
FRAGMENTS = 256 << 20
"""Unused bytes from which they are worth a word."""
FRAGMENTED = 0.2
"""Unused over allocated bytes from which they are worth a word."""
EXPANDABLE = (
    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since torch 2.9) "
    "against fragmentation"
)


def fragments(device: DeviceMemory, ooms: Sequence[TracedOom] = ()) -> str:
    """What its unused memory means, "" where it is little."""
    unused = device.inactive
    failed = [o for o in ooms if o.device == device.device]
    if failed and device.largest_inactive < failed[-1].requested <= unused:
        return (
            f"{words(unused)} of device {device.device} are reserved and unused, yet no piece "
            f"is larger than {words(device.largest_inactive)} and {words(failed[-1].requested)} were asked "
            "for: fragmentation"
        )
    if unused < FRAGMENTS or unused < FRAGMENTED * device.allocated:
        return ""
    return (
        f"{words(unused)} of device {device.device} are reserved and unused, the largest piece "
        f"{words(device.largest_inactive)}: fragmentation, or a peak that has passed"
    )


def said(snapshot: MemorySnapshot) -> Iterator[str]:
    """Its figures as lines of evidence, what matters most first."""
    for oom in snapshot.ooms[-SHOWN:]:
        free = f", {words(oom.free)} free" if oom.free is not None else ""
        where = _at(oom.file, oom.line, oom.function)
        yield f"device {oom.device}: out of memory, asked for {words(oom.requested)}{free}{where}"
    for device in snapshot.devices:
        yield (
            f"device {device.device}: {words(device.allocated)} allocated in {device.blocks} blocks, "
            f"{words(device.reserved)} reserved, {words(device.inactive)} of it unused"
        )
        for held in device.holders[:SHOWN]:
            count = f"{held.count} block{'s' if held.count != 1 else ''}"
            where = _at(held.file, held.line, held.function) or " without a recorded stack"
            yield f"device {device.device}: {words(held.bytes)} in {count}{where}"


def _at(file: str, line: int, function: str) -> str:
    return f" at {file}:{line} ({function})" if file else ""
