"""One dump per rank: files of older runs, second files of a rank and files numbered per host."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.subjects.flight import FlightDump, Unread

GAP = 3600.0
"""Seconds between a dump's last entry and the others' first ones that make it an older run's."""
MARGIN = 60.0
"""The same where the others still hold their first entry: clocks of hosts differ by less."""

Settled = tuple[tuple[FlightDump, ...], tuple[Unread, ...], tuple[str, ...]]


def settle(dumps: Sequence[FlightDump]) -> Settled:
    """The dumps of the last run by rank, those left out with the reason, and what was assumed."""
    notes: list[str] = []
    dropped: list[Unread] = []
    named = [d for d in dumps if d.rank >= 0]
    nameless = [d for d in dumps if d.rank < 0]
    if len(nameless) == 1 and not named:
        named, nameless = [replace(nameless[0], rank=_only_rank(nameless[0]))], []
        notes.append(
            f"{os.path.basename(named[0].path)}: no rank in its name; taken for rank {named[0].rank}"
        )
    dropped += [Unread(d.path, "no rank in its name", "other") for d in nameless]
    named, stale = _newest_run(named)
    dropped += stale
    named, more = _per_host(named)
    notes += more
    kept, doubles = _one_each(named)
    return tuple(sorted(kept, key=lambda d: d.rank)), (*dropped, *doubles), tuple(notes)


def _only_rank(dump: FlightDump) -> int:
    ranks = {r for g in dump.groups for r in g.ranks}
    return ranks.pop() if len(ranks) == 1 else 0


def span(dump: FlightDump) -> tuple[float, float] | None:
    """Seconds of the first and the last entry; None where there is none with a time."""
    times = [t for t in (dump.entries.created[:1] + dump.entries.created[-1:]) if t > 0]
    return (min(times) / 1e9, max(times) / 1e9) if times else None


def _newest_run(dumps: list[FlightDump]) -> tuple[list[FlightDump], list[Unread]]:
    spans = {id(d): s for d in dumps if (s := span(d)) is not None}
    if not spans:
        return dumps, []
    newest = max(s[1] for s in spans.values())
    current = [d for d in dumps if id(d) in spans and spans[id(d)][1] > newest - GAP]
    start = min(spans[id(d)][0] for d in current)
    whole = all(d.first_record == 0 for d in current)
    timeout = (
        max((g.timeout_ms or 0) / 1000 for d in dumps for g in d.groups)
        if any(d.groups for d in dumps)
        else 0
    )
    gap = MARGIN if whole else max(GAP, 2 * timeout)
    kept, stale = [], []
    for dump in dumps:
        found = spans.get(id(dump))
        if found is not None and found[1] < start - gap:
            stale.append(
                Unread(
                    dump.path,
                    f"of an older run: it ends {(start - found[1]) / 60:.0f} min before the others begin",
                    "stale",
                )
            )
        else:
            kept.append(dump)
    return kept, stale


def _per_host(dumps: list[FlightDump]) -> tuple[list[FlightDump], list[str]]:
    """Folders that each number their files from 0 hold local ranks: count on over the folders, in their
    order.
    """
    folders: dict[str, list[FlightDump]] = defaultdict(list)
    for dump in dumps:
        folders[os.path.dirname(dump.path)].append(dump)
    sizes = {len(f) for f in folders.values()}
    world = max((len(g.ranks) for d in dumps for g in d.groups), default=0)
    alike = len({tuple(sorted(d.rank for d in f)) for f in folders.values()}) == 1
    if len(folders) < 2 or len(sizes) != 1 or not alike or world != len(dumps):
        return dumps, []
    local = sizes.pop()
    renumbered = [
        replace(dump, rank=node * local + dump.rank)
        for node, folder in enumerate(sorted(folders))
        for dump in folders[folder]
    ]
    if sorted(d.rank for d in renumbered) != list(range(world)):
        return dumps, []
    return renumbered, [
        f"files are numbered per folder: taken for local ranks, {local} per host in the order of the folders"
    ]


def _one_each(dumps: list[FlightDump]) -> tuple[list[FlightDump], list[Unread]]:
    best: dict[int, FlightDump] = {}
    doubles: list[Unread] = []
    for dump in dumps:
        other = best.get(dump.rank)
        if other is None:
            best[dump.rank] = dump
            continue
        first, second = sorted((other, dump), key=_worth)
        best[dump.rank] = second
        doubles.append(
            Unread(
                first.path,
                f"a second dump of rank {dump.rank}; {os.path.basename(second.path)} tells more",
                "duplicate",
            )
        )
    return list(best.values()), doubles


def _worth(dump: FlightDump) -> tuple[float, bool, int, bool]:
    """Later is better; of the same time, whole, longer, and with stacks."""
    found = span(dump)
    return (found[1] if found else 0.0, not dump.cut, len(dump.entries), dump.form == "pickle")
