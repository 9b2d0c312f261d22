"""What the control groups of this process allow: version 1, version 2 and both at once."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.facts.parse import fields, integer, real
from fsdp_doctor.facts.source import Source, text
from fsdp_doctor.subjects.host import Cgroup

ROOT = "/sys/fs/cgroup"
UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of the page size."""
DEPTH = 32


def cgroup(source: Source) -> Cgroup:
    """The tightest limit on the way from this process's group up to the root that is visible here."""
    paths = membership(text(source, "/proc/self/cgroup"))
    quota = [q for folder in folders(source, paths, "cpu") if (q := cpu_quota(source, folder))]
    memory = _tightest(source, paths, "memory", "memory.max", "memory.limit_in_bytes")
    used = _first(source, paths, "memory", "memory.current", "memory.usage_in_bytes", memory[1])
    pids = _tightest(source, paths, "pids", "pids.max", "pids.max")
    return Cgroup(
        cpu_quota=min(quota, default=None),
        memory_max=memory[0],
        memory_current=used,
        oom_kills=_oom_kills(source, paths),
        pids_max=pids[0],
        pids_current=_first(source, paths, "pids", "pids.current", "pids.current", pids[1]),
    )


def membership(listing: str | None) -> dict[str, str]:
    """Controller -> path of /proc/self/cgroup; the unified hierarchy of version 2 under ""."""
    found: dict[str, str] = {}
    for line in (listing or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found.setdefault(controller, parts[2])
    return found


def folders(source: Source, paths: dict[str, str], controller: str) -> Iterator[str]:
    """Folders of a controller that exist, from the process's own group up to the visible root.

    A container often mounts its own group as the root while /proc names the path on the host, so a
    path that does not exist is no end: its ancestors are tried as well.
    """
    version1 = [controller, "cpu,cpuacct"] if controller == "cpu" else [controller]
    roots = [(ROOT, ""), (f"{ROOT}/unified", ""), *((f"{ROOT}/{name}", controller) for name in version1)]
    for root, key in roots:
        if not source.exists(root):
            continue
        path = paths.get(key, "/")
        steps = [s for s in path.split("/") if s not in ("", ".", "..")][:DEPTH]
        for depth in range(len(steps), -1, -1):
            folder = "/".join([root, *steps[:depth]])
            if source.exists(folder):
                yield folder


def cpu_quota(source: Source, folder: str) -> float | None:
    """Processors' worth of time that one group allows; None for no limit."""
    words = (text(source, f"{folder}/cpu.max", 128) or "").split()
    if words:
        quota, period = real(words[0]), real(words[1]) if len(words) > 1 else 100000.0
    else:
        quota = real(text(source, f"{folder}/cpu.cfs_quota_us", 64))
        period = real(text(source, f"{folder}/cpu.cfs_period_us", 64))
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _limit(source: Source, folder: str, *names: str) -> int | None:
    for name in names:
        value = integer(text(source, f"{folder}/{name}", 64))
        if value is not None and 0 <= value < UNLIMITED:
            return value
    return None


def _tightest(
    source: Source, paths: dict[str, str], controller: str, *names: str
) -> tuple[int | None, str | None]:
    limits = [
        (v, f) for f in folders(source, paths, controller) if (v := _limit(source, f, *names)) is not None
    ]
    return min(limits, default=(None, None), key=lambda pair: pair[0])


def _first(
    source: Source, paths: dict[str, str], controller: str, name: str, old: str, folder: str | None
) -> int | None:
    """The use in the group that sets the limit, else in the process's own group."""
    for place in [folder] if folder else folders(source, paths, controller):
        value = _limit(source, place, name, old)
        if value is not None:
            return value
    return None


def _oom_kills(source: Source, paths: dict[str, str]) -> int | None:
    """Kills in the process's own group: an ancestor also counts those of its neighbours."""
    for folder in folders(source, paths, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = integer(fields(text(source, f"{folder}/{name}"), " ").get("oom_kill"))
            if count is not None:
                return count
    return None
