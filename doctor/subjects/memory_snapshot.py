"""What a snapshot of PyTorch's CUDA allocator holds, summed up: `torch.cuda.memory._dump_snapshot`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Live blocks that one line of the user's program allocated. `file` is "" without recorded stacks."""

    file: str
    line: int
    function: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The allocator's memory on one device, in bytes."""

    device: int
    reserved: int
    """Of all segments."""
    allocated: int
    """In live blocks."""
    pending: int
    """Freed by the program, and still awaited by a stream."""
    inactive: int
    """Reserved and unused."""
    largest_inactive: int
    """The largest unused block in one piece."""
    segments: int
    blocks: int
    """Live ones."""
    holders: tuple[LiveBlocks, ...] = ()
    """Who holds the live blocks, the largest first."""


@dataclass(frozen=True, slots=True)
class TracedOom:
    """An out-of-memory entry of the snapshot's trace."""

    device: int
    requested: int
    """Bytes."""
    free: int | None
    """Bytes that the device had free."""
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """One snapshot file."""

    path: str
    rank: int | None
    """By the file's name."""
    devices: tuple[DeviceMemory, ...]
    ooms: tuple[TracedOom, ...] = ()
    """The last ones, oldest first."""
    bytes: int = 0
    cut: str = ""
    """What of it is missing or was not read, and why; "" for a whole snapshot."""
