"""What lines tell of other lines: the call site of a timed-out collective, the GPU of a throttling report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis import markers
from fsdp_doctor.diagnosis.records import SourceScan
from fsdp_doctor.diagnosis.who import Who
from fsdp_doctor.subjects.incident import Frame, Hit

THROTTLED, LOST = "LOG405", "LOG235"
TIMED_OUT = ("LOG101", "LOG103", "LOG105", "LOG120")


def with_call_sites(hits: list[Hit], scans: Sequence[SourceScan], who: Who) -> list[Hit]:
    """Give timed-out collectives the frames that torch, or a stray stack, shows of their rank."""
    sites: dict[int, list[Frame]] = {}
    for scan in scans:
        for mark in scan.marked:
            if (
                mark.code in (markers.CALL_SITE, markers.FRAME)
                and (rank := who.rank(scan.name, mark.key, mark.origin.pid)) is not None
            ):
                frames = sites.setdefault(rank, [])
                if len(frames) < 64:
                    frames.insert(0, mark.frames[0]) if mark.code == markers.CALL_SITE else frames.append(
                        mark.frames[0]
                    )
    if not sites:
        return hits
    return [
        replace(h, frames=tuple(sites[h.origin.rank]))
        if h.code in TIMED_OUT and not h.frames and h.origin.rank in sites
        else h
        for h in hits
    ]


def with_devices(hits: list[Hit], scans: Sequence[SourceScan]) -> list[Hit]:
    """Give lines of `nvidia-smi -q` and of the driver the GPU that a line above them names."""
    heads = [
        (m.origin.file, m.origin.line, m.fields["bus"])
        for s in scans
        for m in s.marked
        if m.code == markers.SMI_GPU
    ]
    if not heads:
        return hits

    def device(hit: Hit) -> dict[str, str]:
        above = [
            (line, bus) for file, line, bus in heads if file == hit.origin.file and line < hit.origin.line
        ]
        return {"bus": max(above)[1]} if above else {}

    return [replace(h, fields={**h.fields, **device(h)}) if h.code in (THROTTLED, LOST) else h for h in hits]
