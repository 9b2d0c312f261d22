"""Fold the results of many ranks: what differs in host and rank alone becomes one result that names them.

Results of one host that rest on facts of the node are the same fault even where a figure moved between
two readings, so they are folded by host too. `Subject.host` of a folded result is one name, or the names
joined by commas; `Subject.rank` is one rank or a sorted tuple.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.findings import Result, Status, Subject
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Identity, Scheduler

RANK_FACTS: frozenset[type[object]] = frozenset((Environment, Scheduler, Identity, Launch))
"""Facts that differ between ranks of one host."""
PASS_VARIANTS = 8
"""Differently worded passes of one check that are kept apart; the rest become one."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def node_scoped(checks: Iterable[CheckSpec]) -> frozenset[str]:
    """Codes of the checks whose needed facts are the same for all ranks of a host."""
    return frozenset(c.code for c in checks if not RANK_FACTS.intersection(c.needs))


@dataclass(slots=True)
class _Group:
    first: Result
    hosts: dict[str, None] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    seconds: float = 0.0
    wordings: set[str] | None = None

    def add(self, result: Result) -> None:
        if result.subject.host is not None:
            self.hosts[result.subject.host] = None
        rank = result.subject.rank
        if rank is not None:
            self.ranks.update((rank,) if isinstance(rank, int) else rank)
        self.seconds += result.seconds
        if self.wordings is not None:
            self.wordings.add(result.found)

    def result(self) -> Result:
        ranks = tuple(sorted(self.ranks))
        subject = replace(
            self.first.subject,
            host=",".join(sorted(self.hosts)) or None,
            rank=ranks[0] if len(ranks) == 1 else ranks or None,
        )
        if self.wordings is None:
            return replace(self.first, subject=subject, seconds=self.seconds)
        only = Subject(host=subject.host, rank=subject.rank)
        found = f"{len(self.wordings)} more passes that differ in their figures, such as: {self.first.found}"
        return replace(self.first, subject=only, found=found, seconds=self.seconds)


class Merger:
    """Takes results rank by rank; memory grows with the distinct results, not with the ranks."""

    def __init__(self, node_scoped: frozenset[str] = frozenset()) -> None:
        self._node_scoped = node_scoped
        self._groups: dict[Hashable, _Group] = {}
        self._same_node: dict[Hashable, _Group] = {}
        self._passes: dict[str, int] = {}

    def add(self, results: Iterable[Result]) -> None:
        """Fold the results of one rank in."""
        fresh: dict[Hashable, _Group] = {}
        for result in results:
            self._group(result, fresh).add(result)
        self._same_node.update(fresh)

    def results(self) -> tuple[Result, ...]:
        """All results by code; within a code in the order in which they came."""
        return tuple(sorted((g.result() for g in self._groups.values()), key=lambda r: r.code))

    def _group(self, result: Result, fresh: dict[Hashable, _Group]) -> _Group:
        key = _key(result, result.found, result.expected, result.why)
        same_node = self._node_key(result)
        group = self._groups.get(key)
        if group is None and same_node is not None:
            group = self._same_node.get(same_node)
        if group is None:
            group = self._new_group(key, result)
        if same_node is not None:
            fresh.setdefault(same_node, group)
        return group

    def _new_group(self, key: Hashable, result: Result) -> _Group:
        passes = self._passes.get(result.code, 0)
        if result.status is Status.PASS:
            self._passes[result.code] = passes + 1
        if result.status is not Status.PASS or passes < PASS_VARIANTS:
            return self._groups.setdefault(key, _Group(result))
        return self._groups.setdefault((result.code, "more passes"), _Group(result, wordings=set()))

    def _node_key(self, result: Result) -> Hashable | None:
        """Equal on one host whatever the figures are; None where local ranks may truly differ."""
        host = result.subject.host
        if host is None or result.subject.variable or result.code not in self._node_scoped:
            return None
        return host, _key(result, *(_NUMBER.sub("#", t) for t in (result.found, result.expected, result.why)))


def _key(result: Result, found: str, expected: str, why: str) -> Hashable:
    s = result.subject
    about = (s.gpu, s.device, s.variable, s.path, s.file, s.line, s.tensor, result.fix)
    return (
        result.code,
        result.status,
        result.row,
        result.title,
        found,
        expected,
        why,
        result.confidence,
        result.suppressed,
        repr(about),
    )
