"""In which collective each rank got stuck, by what NCCL's watchdog prints of each process group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fsdp_doctor.diagnosis.culprit.lines import PROGRESS, TIMEOUT
from fsdp_doctor.diagnosis.culprit.proofs import proof
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import Hit

SCALAR = 64
"""Elements up to which a tensor is a flag, a count or a metric."""
OF_FSDP = ("_ALLGATHER", "_REDUCE_SCATTER")
"""Operations that FSDP issues, however small a shard is."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where one rank got stuck in one process group."""

    rank: int
    seq: int
    op: str
    numel: int | None
    hit: Hit
    enqueued: int | None = None
    """Sequence number of the last collective that the rank had enqueued."""

    @property
    def what(self) -> tuple[int, str, int | None]:
        """What has to be the same on all ranks."""
        return (self.seq, self.op, self.numel)

    @property
    def words(self) -> str:
        """`_ALLGATHER_BASE #20911 with 6291456 elements`."""
        size = f" with {self.numel} elements" if self.numel is not None else ""
        return f"{self.op or 'a collective'} #{self.seq}{size}"

    @property
    def is_scalar(self) -> bool:
        """Whether it reduces a flag or a metric rather than parameters."""
        return self.numel is not None and self.numel <= SCALAR and not self.op.startswith(OF_FSDP)

    @property
    def began(self) -> float:
        """When the collective began, in seconds; 0 where the log does not tell."""
        time, ran = self.hit.origin.time, self.hit.fields.get("ran")
        return time - int(ran) / 1000 if time is not None and ran is not None else 0.0


@dataclass(frozen=True)
class Group:
    """The ranks of one process group that timed out."""

    name: str
    """Its number, else its name; "" where no line tells."""
    stuck: Mapping[int, Stuck]

    @cached_property
    def ranks(self) -> frozenset[int]:
        """The ranks that timed out."""
        return frozenset(self.stuck)

    @property
    def order(self) -> int:
        """How early the first of the timeouts was printed."""
        return min(s.hit.order for s in self.stuck.values())

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """The timeouts as evidence."""
        return tuple(proof(self.stuck[r].hit) for r in sorted(self.stuck))


def groups(view: View) -> list[Group]:
    """The process groups that timed out, the first to stand first, with each rank's earliest collective."""
    named = _names(view)
    counts: dict[str, dict[int, int]] = {}
    found: dict[str, dict[int, Stuck]] = {}
    for hit in view.hits:
        rank, number = hit.origin.rank, hit.fields.get("seq")
        if hit.code != TIMEOUT or rank is None or number is None:
            continue
        name = _group_of(hit) or named.get((rank, number), "")
        numel = int(hit.fields["nin"]) if "nin" in hit.fields else None
        if name not in counts:
            counts[name] = enqueued(view, name)
        entry = Stuck(rank, int(number), hit.fields.get("op", ""), numel, hit, counts[name].get(rank))
        old = found.setdefault(name, {}).get(rank)
        if old is None or entry.seq < old.seq:
            found[name][rank] = entry
    return sorted(
        (Group(name, stuck) for name, stuck in found.items()),
        key=lambda g: min((s.began for s in g.stuck.values() if s.began), default=0.0),
    )


def enqueued(view: View, group: str) -> dict[int, int]:
    """Rank -> the last collective that it had enqueued in a group; lines without a group count for each."""
    found: dict[int, int] = {}
    for hit in view.hits:
        if (
            hit.code == PROGRESS
            and hit.origin.rank is not None
            and (not group or _group_of(hit) in ("", group))
        ):
            found.setdefault(hit.origin.rank, int(hit.fields["enq"]))
    return found


def _group_of(hit: Hit) -> str:
    """A line's process group: its number, since several groups may have one name; "" where it is not told."""
    return hit.fields.get("pg_id") or hit.fields.get("pg", "")


def _names(view: View) -> dict[tuple[int, str], str]:
    """(rank, sequence number) -> group: the line of the timeout does not tell it, those after it do."""
    return {
        (h.origin.rank, number): _group_of(h)
        for h in reversed(view.hits)
        if h.origin.rank is not None and _group_of(h) and (number := h.fields.get("seq"))
    }
