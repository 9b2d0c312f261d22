"""A snapshot of CUDA memory (`torch.cuda.memory._dump_snapshot`) summed per device and per line of code.

The form is that of torch 2.0 to 2.13: segments with blocks, whose frames are the innermost first; torch 2.0
kept a block's frames in its `history`.
"""

from __future__ import annotations

import re

from .columns import whole, words

DEVICES = 64
HOLDERS = 10
OOMS = 8
FRAMES = 256
"""Frames of one stack that are looked through."""
_INTERNAL = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?:torch|triton|functorch)/"
    r"|(?:^|/)torch/(?:_\w+|accelerator|amp|autograd|cuda|distributed|fx|jit|nn|optim|utils|functional\.py|storage\.py)"
)
_Site = tuple[str, int, str]
_NOWHERE: _Site = ("", 0, "")


def summed(root: dict[object, object], form: str, cut: str) -> dict[str, object] | None:
    """The answer for a snapshot; None where what is in it is none."""
    segments = root.get("segments")
    if type(segments) is not list or not all(type(s) is dict for s in segments):
        return None
    devices: dict[int, _Device] = {}
    sites = _Sites()
    for segment in segments:
        number = whole(segment.get("device"))
        if number is None or not 0 <= number < 1 << 16 or (number not in devices and len(devices) == DEVICES):
            continue
        devices.setdefault(number, _Device()).add(segment, sites)
    return {
        "kind": "snapshot",
        "problem": "a snapshot of CUDA memory, not a Flight Recorder dump",
        "form": form,
        "cut": cut,
        "devices": [devices[n].told(n) for n in sorted(devices)],
        "ooms": ooms(root.get("device_traces"), sites),
    }


def _size(value: object) -> int:
    number = whole(value)
    return number if number is not None and number > 0 else 0


class _Sites:
    """The user's line of each stack. Blocks share lists of frames, which live as long as the snapshot."""

    def __init__(self) -> None:
        self._known: dict[int, _Site] = {}

    def of(self, frames: object) -> _Site:
        if type(frames) is not list or not frames:
            return _NOWHERE
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = _site(frames)
        return known


def _site(frames: list[object]) -> _Site:
    """The innermost frame of Python that is not torch's own; else the innermost of Python."""
    first = _NOWHERE
    for frame in frames[:FRAMES]:
        if type(frame) is not dict:
            continue
        file = words(frame.get("filename"))
        if not file.endswith((".py", ">")) or file.startswith("<frozen"):  # ??, or a source in C++
            continue
        site = (file, whole(frame.get("line")) or 0, words(frame.get("name")))
        if not _INTERNAL.search(file.replace("\\", "/")):
            return site
        if first == _NOWHERE:
            first = site
    return first


class _Device:
    def __init__(self) -> None:
        self.reserved = self.allocated = self.pending = self.largest = self.segments = self.blocks = 0
        self.holders: dict[_Site, list[int]] = {}

    def add(self, segment: dict[object, object], sites: _Sites) -> None:
        self.segments += 1
        self.reserved += _size(segment.get("total_size"))
        blocks = segment.get("blocks")
        if type(blocks) is not list:
            self.allocated += _size(segment.get("allocated_size"))
            return
        for block in blocks:
            if type(block) is not dict:
                continue
            size, state = _size(block.get("size")), block.get("state")
            if state == "active_allocated":
                self.allocated += size
                self.blocks += 1
                held = self.holders.setdefault(sites.of(_frames(block)), [0, 0])
                held[0] += size
                held[1] += 1
            elif state == "inactive":
                self.largest = max(self.largest, size)
            else:  # active_awaiting_free, before torch 2.1 active_pending_free
                self.pending += size

    def told(self, number: int) -> dict[str, object]:
        largest = sorted(self.holders.items(), key=lambda h: (-h[1][0], h[0]))[:HOLDERS]
        return {
            "device": number,
            "reserved": self.reserved,
            "allocated": self.allocated,
            "pending": self.pending,
            "inactive": max(self.reserved - self.allocated - self.pending, 0),
            "largest_inactive": self.largest,
            "segments": self.segments,
            "blocks": self.blocks,
            "holders": [[*site, size, count] for site, (size, count) in largest],
        }


def _frames(block: dict[object, object]) -> object:
    history = block.get("history")
    if "frames" not in block and type(history) is list and history and type(history[0]) is dict:
        return history[0].get("frames")
    return block.get("frames")


def ooms(traces: object, sites: _Sites | None = None) -> list[list[object]]:
    """[device, requested, free, file, line, function] of the last entries of each device."""
    sites = sites or _Sites()
    found: list[list[object]] = []
    for number, trace in enumerate(traces[:DEVICES] if type(traces) is list else []):
        if type(trace) is not list:
            continue
        entries = [e for e in trace if type(e) is dict and e.get("action") == "oom"]
        for entry in entries[-OOMS:]:
            free = whole(entry.get("device_free"))
            found.append([number, _size(entry.get("size")), free, *sites.of(entry.get("frames"))])
    return found
