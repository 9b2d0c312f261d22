"""The kernel's messages since boot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Xid:
    """An NVRM Xid message."""

    number: int
    bdf: str
    text: str
    process: str | None = None
    pid: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SXid:
    """An NVSwitch SXid message."""

    number: int
    switch: str
    fatal: bool
    text: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    """`lines` hold the text without its time stamp; `truncated` where the oldest ones are gone."""

    lines: tuple[str, ...]
    xids: tuple[Xid, ...] = ()
    sxids: tuple[SXid, ...] = ()
    truncated: bool = False
    seconds: tuple[float | None, ...] = ()
    """Of each line, since boot; None, or nothing, where the log does not say."""
