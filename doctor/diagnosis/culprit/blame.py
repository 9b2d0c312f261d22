"""Whose fault a cause is that lines name: by the signature's scope, numbers in a line, who else suffers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.diagnosis.culprit.lines import (
    ABORTED,
    BLOCKED,
    DCP_FAILED,
    HOST_OOM,
    MEMORY_DEFECTIVE,
    MODULE_MISSING,
    NOT_A_NUMBER,
    SCHEDULER,
    UNKNOWN_EXCEPTION,
    XID,
)
from fsdp_doctor.diagnosis.culprit.signals import SIGABRT, SIGSEGV, SIGTERM, signal_of
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_signatures import Scope, Signature

BY_PROCESS = (BLOCKED, MEMORY_DEFECTIVE)
"""Of the host, and of the process that they name by its number."""
AROUND = 400
"""Lines behind the list of failing ranks of a distributed checkpoint in which their errors stand."""
JOB_SHARE, FEW = 0.5, 0.25
CONFIDENT = 70
OWN_SIGNALS = (SIGABRT, SIGSEGV)
"""Signals by which a process ends after it has printed an error, as libraries do."""


def to_blame(view: View, signature: Signature, hits: Sequence[Hit], ranks: frozenset[int]) -> frozenset[int]:
    """The ranks at fault; `ranks` are those that printed the lines."""
    if signature.scope is Scope.NAMED:
        return frozenset(
            int(n)
            for h in hits
            for n in re.findall(r"\d+", h.fields.get("bad") or h.fields.get("bad2", ""))[:64]
        )
    if signature.code == XID:
        return _of_device(view, hits[0])
    if signature.code in HOST_OOM:
        return _killed(view, hits)
    if signature.code in BY_PROCESS:
        return _of_processes(view, hits)
    if signature.code == SCHEDULER and any("NODE" in h.text.upper() for h in hits):
        return _of_lost_node(view, hits)
    dcp = listed_by_checkpoint(view, hits)
    if dcp is not None:
        return dcp
    if (
        not ranks
        and signature.scope is not Scope.HOST
        and (owner := _owner(view, signature, hits)) is not None
    ):
        return frozenset((owner,))
    if signature.code == NOT_A_NUMBER:
        return _first_nan(view, hits, ranks)
    if signature.scope is Scope.RANK:
        shared = len(ranks) > 1 and len(ranks) >= JOB_SHARE * len(view.ranks | ranks)
        return frozenset() if shared else ranks  # nobody is to blame for what all of them raise
    if signature.scope is Scope.DEVICE:
        return ranks if len(ranks) == 1 else frozenset()
    return _apart(view, signature, hits, ranks)


def _apart(view: View, signature: Signature, hits: Sequence[Hit], ranks: frozenset[int]) -> frozenset[int]:
    """Ranks that fail where others got further: what would stop every rank stopped only these."""
    others = view.waited | view.lost_peer
    if not ranks or ranks & others:
        return frozenset()
    if signature.code == MODULE_MISSING and _is_local(view, ranks):
        return ranks
    few = len(ranks) == 1 or len(ranks) <= FEW * len(ranks | others)
    sure = signature.weight >= CONFIDENT and any(h.frames for h in hits)
    return ranks if others and few and sure else frozenset()


def _is_local(view: View, ranks: frozenset[int]) -> bool:
    """Whether the environment fails on some hosts, or on few ranks, while other ranks started."""
    started = frozenset(view.last) - ranks
    if not started:
        return False
    hosts = view.incident.job.hosts
    here = {hosts.get(r) for r in ranks}
    whole = None not in here and not here & {hosts.get(r) for r in started}
    return whole or len(ranks) == 1 or len(ranks) <= FEW * len(ranks | started)


def _first_nan(view: View, hits: Sequence[Hit], ranks: frozenset[int]) -> frozenset[int]:
    """The rank that had it in an earlier step than every other; else those that have it, if others do not."""
    first: dict[int, int] = {}
    for hit in hits:
        found = re.search(r"\b(?:step|iter(?:ation)?)\D{0,4}(\d+)", hit.text, re.I)
        if found and hit.origin.rank is not None:
            first.setdefault(hit.origin.rank, int(found[1]))
    earliest = [r for r, n in first.items() if n == min(first.values())]
    if len(earliest) == 1 and len(first) > 1:
        return frozenset(earliest)
    if not frozenset(view.steps) - ranks:
        return frozenset()  # no other rank says what its loss is
    shared = len(ranks) > 1 and len(ranks) >= JOB_SHARE * len(view.ranks | ranks)
    return frozenset() if shared else ranks


def _owner(view: View, signature: Signature, hits: Sequence[Hit]) -> int | None:
    """The one rank that ended by an error of its own and said nothing under its name: the error without a
    name is its, if it was printed once while the launcher stopped the others.
    """
    plain = signature.code == UNKNOWN_EXCEPTION or signature.weight < CONFIDENT
    if sum(h.count for h in hits) != 1 or (plain and not any(h.frames for h in hits)):
        return None
    speakers = {h.origin.rank for h in view.told if h.code != ABORTED}
    failed = [
        e.rank
        for e in view.failed_exits
        if (e.code == 1 or (not plain and signal_of(e.code) in OWN_SIGNALS)) and e.rank not in speakers
    ]
    known = [r for r in failed if r is not None]
    stopped = any(signal_of(e.code) == SIGTERM for e in view.exits)
    return known[0] if len(known) == 1 and (stopped or speakers - {None}) else None


def listed_by_checkpoint(view: View, hits: Sequence[Hit]) -> frozenset[int] | None:
    """The failing ranks that a distributed checkpoint lists around these lines; None without such a list."""
    lists = [h for h in view.hits if h.code == DCP_FAILED and h.fields.get("ranks")]
    near = [c for c in lists if any(is_inside(c, h) for h in hits)]
    if not near:
        return None
    named = frozenset(int(n) for c in near for n in re.findall(r"\d+", c.fields["ranks"]))
    job = view.incident.job
    world = view.world if job.stated or job.basis.startswith("the sizes") else None
    together = named == frozenset(range(len(named))) and len(named) > 1
    most = together and (world is None or len(named) * 2 > world)
    return frozenset() if most or (world is not None and len(named) >= world) else named


def is_inside(outer: Hit, hit: Hit) -> bool:
    """Whether a line stands among those of a distributed checkpoint's list of failures."""
    same = outer.origin.file == hit.origin.file
    return same and 0 <= hit.origin.line - outer.origin.line < AROUND


# by numbers


def _pids(hits: Iterable[Hit]) -> frozenset[int]:
    return frozenset(int(h.fields["pid"]) for h in hits if h.fields.get("pid", "").isdigit())


def _of_processes(view: View, hits: Iterable[Hit]) -> frozenset[int]:
    pids: Mapping[int, int] = view.incident.job.pids
    numbers = _pids(hits)
    return frozenset(r for r, p in pids.items() if p in numbers)


def _killed(view: View, hits: Sequence[Hit]) -> frozenset[int]:
    """Ranks whose process the OOM killer ended: by number, else those that ended by SIGKILL."""
    tasks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    return _of_processes(view, hits) or view.killed or tasks


def _of_lost_node(view: View, hits: Sequence[Hit]) -> frozenset[int]:
    """The ranks of a node that is named as down, else those that say nothing while the others wait."""
    down = {h.fields["down"] for h in hits if "down" in h.fields}
    own = frozenset(r for r, host in view.incident.job.hosts.items() if host in down)
    return own or view.without_a_word


def _of_device(view: View, hit: Hit) -> frozenset[int]:
    """The rank of a GPU that the driver names: by the process, else by the address."""
    buses, address = view.incident.job.buses, pci_address(hit.fields.get("bus", ""))
    found = _of_processes(view, (hit,))
    if not found and address is not None and address in buses:
        return frozenset((buses[address],))
    return found


def pci_address(text: str) -> int | None:
    """A GPU's address as one number, as NCCL prints it: of `0000:3b:00.0`, `0000:3b:00` or `3b:00`."""
    parts = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.(\d))?", text.lower())
    if parts is None:
        return None
    domain, bus, device = (int(p or "0", 16) for p in parts.groups()[:3])
    return (domain << 20) | (bus << 12) | (device << 4) | int(parts[4] or 0)
