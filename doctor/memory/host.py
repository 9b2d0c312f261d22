"""What one rank takes of its host's memory: plain tensors, and pinned ones as the allocator caches them."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGEABLE, PINNED = 0, 1
"""What the stream column of a host event says."""


def rounded(size: int) -> int:
    """Bytes of the block that a pinned tensor gets: the next power of two.

    ATen/core/CachingHostAllocator.h; PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N ends it above N MiB.
    """
    return 1 << (size - 1).bit_length() if size > 0 else 0


@dataclass(slots=True)
class HostMemory:
    """Served in the order of the events. Bytes."""

    held: int = 0
    """Live plain tensors, and all pinned blocks, used or not: freed ones are kept for reuse."""
    pinned: int = 0
    """Pinned blocks."""
    requested: int = 0
    """Live tensors, as they were asked for."""
    peak: int = 0
    pinned_requested: int = 0
    """The most that live pinned tensors asked for."""
    _live: dict[int, tuple[int, int]] = field(default_factory=dict)
    _free: dict[int, int] = field(default_factory=dict)
    _pinned_now: int = 0

    def allocate(self, block: int, size: int, kind: int) -> None:
        """A tensor comes to life."""
        self._live[block] = (size, kind)
        self.requested += size
        if kind == PINNED:
            self._pinned_now += size
            self.pinned_requested = max(self.pinned_requested, self._pinned_now)
            whole = rounded(size)
            if self._free.get(whole, 0):
                self._free[whole] -= 1
                return
            self.pinned += whole
            self.held += whole
        else:
            self.held += size
        self.peak = max(self.peak, self.held)

    def free(self, block: int) -> None:
        """A tensor dies."""
        size, kind = self._live.pop(block, (0, PAGEABLE))
        self.requested -= size
        if kind == PINNED:
            self._pinned_now -= size
            self._free[rounded(size)] = self._free.get(rounded(size), 0) + 1
        else:
            self.held -= size
