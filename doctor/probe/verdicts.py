"""From one probe to all conclusions, and to what should be measured again before a failure is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsdp_doctor.probe.busy import busy_words
from fsdp_doctor.probe.expected import expectations
from fsdp_doctor.probe.failures import failures, finished
from fsdp_doctor.probe.figures import figures, largest, size_words
from fsdp_doctor.probe.levels import detours, jitters, latencies, shortfalls
from fsdp_doctor.probe.localise import examined, localise, work_words
from fsdp_doctor.probe.pair_table import spread
from fsdp_doctor.probe.peers import BETWEEN, floors, hosts, weighed
from fsdp_doctor.probe.records import counters, mismatches, starts
from fsdp_doctor.subjects.fabric import COMPUTE, COPY, EITHER_END, LINK, Culprit, Fabric, Figure
from fsdp_doctor.subjects.probe import ProbeResult

CONTROLS = 2
"""Pairs of healthy ranks that are repeated beside each suspect, to compare it with."""


def conclude(result: ProbeResult) -> Fabric:
    """Every conclusion that the measurements allow. Never raises for a `ProbeResult` of any content."""
    found = figures(result)
    expected, unexpected = expectations(result)
    short = shortfalls(found, expected)
    if expected and not any(f.bytes >= 512 << 20 for f in found):
        unexpected = "no collective of 512 MiB or more was measured"
    spreads, unsteady = jitters(result, found)
    grown, counted = counters(result)
    slow, started = starts(result)
    wrong, compared = mismatches(result)
    reach = examined(result, found)
    named, busy = localise(result, found), busy_words(result)
    return Fabric(
        figures=found,
        latencies=latencies(result, found),
        culprits=named,
        undecided=_undecided(result, found, named) if busy else (),
        busy=busy,
        examined=reach.whole,
        unfinished=reach.part,
        expectations=expected,
        shortfalls=short,
        detours=detours(result, short),
        unexpected=unexpected,
        jitters=spreads,
        unsteady=unsteady,
        grown=grown,
        counted=counted,
        starts=slow,
        started=started,
        mismatches=wrong,
        verified=compared,
        failures=failures(result),
        finished=sum(finished(r) for r in result.ranks),
        summary=_summary(result, found),
    )


def _undecided(result: ProbeResult, found: Sequence[Figure], named: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """What a quiet machine's limits would have accused, of ranks that nobody is accused of."""
    guilty = {r for c in named for r in c.ranks}
    return tuple(c for c in localise(result, found, floors(result)) if not guilty & set(c.ranks))


def _summary(result: ProbeResult, found: Sequence[Figure]) -> tuple[str, ...]:
    said = [work_words(result), spread(result)]
    for op in result.plan.ops:
        top = largest(found, op)
        if top is not None:
            said.append(f"{op} {size_words(top.bytes)} {top.busbw:.3g} GB/s busbw")
    return tuple(s for s in said if s)


@dataclass(frozen=True, slots=True)
class Recheck:
    """What to measure again (`run=1`) because one measurement suspects it."""

    work: bool = False
    copies: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    """Suspects' pairs and healthy ones beside them, each pair once; both directions, one pair at a time."""
    collectives: tuple[tuple[str, int, str], ...] = ()
    """Operation, bytes, group."""

    @property
    def empty(self) -> bool:
        """Whether nothing is suspected."""
        return not (self.work or self.copies or self.pairs or self.collectives)


def recheck(result: ProbeResult) -> Recheck:
    """What a first run (`run=0` only) suspects."""
    found = figures(result)
    both = dict.fromkeys((floors(result), weighed(result)))
    suspects = [c for limits in both for c in localise(result, found, replace(limits, once=1.0))]
    expected, _ = expectations(result)
    again = [(s.op, s.bytes, "world") for s in shortfalls(found, expected)]
    if any(c.kind not in (COMPUTE, COPY) for c in suspects):
        again += [(f.op, f.bytes, f.group) for f in _group_figures(found)]
    return Recheck(
        work=any(c.kind == COMPUTE for c in suspects),
        copies=any(c.kind == COPY for c in suspects),
        pairs=_pairs(result, suspects),
        collectives=tuple(dict.fromkeys(again)),
    )


def _group_figures(found: Sequence[Figure]) -> Sequence[Figure]:
    groups = {(f.op, f.group) for f in found if f.group != "world"}
    return [f for op, group in sorted(groups) if (f := largest(found, op, group)) is not None]


def _pairs(result: ProbeResult, suspects: Sequence[Culprit]) -> tuple[tuple[int, int], ...]:
    tried = sorted(
        {(min(p.source, p.target), max(p.source, p.target)) for r in result.ranks for p in r.pairs}
    )
    host = {r: h for h, ranks in hosts(result).items() for r in ranks}
    far = {p for p in tried if host.get(p[0]) != host.get(p[1])}
    links = [c for c in suspects if c.kind in (LINK, EITHER_END)]
    bad = {r for c in suspects for r in c.ranks if c not in links}
    wanted: list[tuple[int, int]] = []
    for c in suspects:
        if c in links and c.source is not None and c.target is not None:
            ends = {host.get(c.source), host.get(c.target)}
            cable = [p for p in tried if set(p) <= set(c.ranks) and {host.get(r) for r in p} == ends]
            wanted.append((min(c.source, c.target), max(c.source, c.target)))
            wanted += cable[: 2 * CONTROLS]
        elif c.kind not in (COMPUTE, COPY):
            for rank in c.ranks:
                own = [p for p in tried if rank in p and (p in far) == (c.scope == BETWEEN)]
                clean = [p for p in own if not bad - {rank} & set(p)]
                wanted += (clean or own)[: 2 * CONTROLS]
    if not wanted:
        return ()
    # Best without any rank of a suspected link; but its ends' other pairs are sound too.
    ends_of_links = {r for c in links for r in c.ranks}
    healthy = [p for p in tried if not bad & set(p) and p not in wanted]
    healthy.sort(key=lambda p: len(ends_of_links & set(p)))
    for across in sorted({p in far for p in wanted}):
        wanted += [p for p in healthy if (p in far) == across][:CONTROLS]
    return tuple(dict.fromkeys(p for p in wanted if p in tried))
