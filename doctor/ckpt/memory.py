"""A ceiling on this process's memory while something untrusted is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fsdp_doctor.ckpt.limits import PICKLE_FACTOR, PICKLE_MEMORY

_enabled = False


def enable() -> None:
    """From now on `allow` sets limits. Only the reading child calls it: a limit holds for a whole process."""
    global _enabled  # noqa: PLW0603
    _enabled = True


@contextlib.contextmanager
def allow(size: int) -> Iterator[None]:
    """Let the address space grow by what `size` bytes of input can honestly need, and by no more.

    What goes beyond raises `MemoryError`. Without effect where the system has no such limit, and in a process
    that is not the reading child.
    """
    try:
        import resource

        used = _address_space()
        if not _enabled or used is None:
            yield
            return
    except ImportError:  # Windows
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    room = used + PICKLE_MEMORY + PICKLE_FACTOR * size
    hard = before[1]
    wanted = room if hard == resource.RLIM_INFINITY else min(room, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int | None:
    """Bytes of address space in use; None where /proc does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    import resource

    return pages * resource.getpagesize()
