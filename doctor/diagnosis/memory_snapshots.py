"""Snapshots of CUDA memory: told by their first bytes, read in a child, and summed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import cast

from fsdp_doctor.diagnosis.flight.reading import Answer, ask
from fsdp_doctor.subjects.incident import Input
from fsdp_doctor.subjects.memory_snapshot import DeviceMemory, LiveBlocks, MemorySnapshot, TracedOom

SECONDS = 120.0
"""For all of them, where no deadline is given."""
MAX_SNAPSHOTS = 64
NAMES: Mapping[str, str] = MappingProxyType({})
_RANK = re.compile(r"rank[_\-=. ]{0,2}(\d{1,7})", re.IGNORECASE)


def looks_like_snapshot(head: bytes) -> bool:
    """Whether a file with these first bytes is a pickle that begins as torch writes a snapshot."""
    return head[:1] == b"\x80" and (b"segments" in head[:256] or b"device_traces" in head[:256])


def read(
    paths: Sequence[str], until: float | None = None, names: Mapping[str, str] = NAMES
) -> tuple[tuple[MemorySnapshot, ...], tuple[Input, ...]]:
    """The snapshots, and each file as an input.

    `until` is in seconds of `time.monotonic`; `names` says where a file comes from that was unpacked.
    """
    until = monotonic() + SECONDS if until is None else until
    found: list[MemorySnapshot] = []
    inputs: list[Input] = []
    for number, path in enumerate(paths):
        name = names.get(path, path)
        if number >= MAX_SNAPSHOTS:
            inputs.append(Input(name, "unread", problem=f"more than {MAX_SNAPSHOTS} snapshots of memory"))
            continue
        answer = ask([path], until)[0]
        if answer.get("kind") == "snapshot":
            snapshot = summary_of(path, name, answer)
            found.append(snapshot)
            inputs.append(Input(name, "memory snapshot", snapshot.bytes, problem=snapshot.cut))
        else:
            inputs.append(Input(name, "unread", problem=str(answer.get("problem"))))
    return tuple(found), tuple(inputs)


def summary_of(path: str, name: str, answer: Answer) -> MemorySnapshot:
    """The snapshot of a file that the child answered for; `name` is what it is called to the user."""
    ranks = _RANK.findall(os.path.basename(path)) or _RANK.findall(os.path.basename(os.path.dirname(path)))
    devices = []
    for told in cast("list[dict[str, object]]", answer["devices"]):
        holders = cast("list[tuple[str, int, str, int, int]]", told.pop("holders"))
        figures = cast("dict[str, int]", told)
        devices.append(DeviceMemory(**figures, holders=tuple(LiveBlocks(*h) for h in holders)))
    ooms = cast("list[tuple[int, int, int | None, str, int, str]]", answer["ooms"])
    try:
        size = os.path.getsize(path)
    except OSError:
        size = 0
    problem = f"cut: {answer['cut']}; what it held before was used" if answer["cut"] else ""
    return MemorySnapshot(
        name,
        int(ranks[-1]) if ranks else None,
        tuple(devices),
        tuple(TracedOom(*o) for o in ooms),
        size,
        problem or str(answer.get("partial", "")),
    )
