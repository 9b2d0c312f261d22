"""One attempt of an incident, with the questions that all ways to a culprit ask of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.subjects.incident import VICTIM, Exit, Frame, Hit, Incident, LastLine, StepPoint
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS
from fsdp_doctor.tables.log_signatures import SIGNATURES

WAITED = frozenset(
    ("LOG101", "LOG103", "LOG104", "LOG105", "LOG112", "LOG120", "LOG121", "LOG117", "LOG143", "LOG149")
)
"""Lines of a rank that waited until a timeout."""
PEER_LOST = frozenset(("LOG118", "LOG119", "LOG123", "LOG124", "LOG144"))
"""Lines of a rank whose peer went away."""
NO_CONSEQUENCE = frozenset(("LOG106", "LOG202", "LOG206", "LOG107", "LOG122", "LOG126", "LOG127", "LOG302"))
"""Lines of a victim that say neither that it waited nor that a peer was lost."""
TAIL = 25
"""Lines at the end of a file that count as its end."""
MAX_PROOFS = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible cause: `score` (0 to 100) ranks it against the others, `order` says how early it came."""

    score: float
    conclusion: Conclusion
    order: int = 0
    ranks: frozenset[int] = frozenset()
    time: float | None = None
    own: bool = False
    """Rests on an error that a rank printed itself."""


@dataclass(frozen=True)
class View:
    """The evidence of one attempt."""

    incident: Incident
    attempt: int = 0
    hits: tuple[Hit, ...] = ()
    exits: tuple[Exit, ...] = ()
    cache: dict[str, object] = field(default_factory=dict)

    @cached_property
    def world(self) -> int | None:
        """Ranks that should be there."""
        return self.incident.job.world_size

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Ranks that any line or exit names."""
        return frozenset(self.incident.job.ranks_seen)

    @cached_property
    def expected(self) -> frozenset[int]:
        """Ranks that should be there, as numbers."""
        return frozenset(range(self.world)) if self.world and self.world <= 1 << 16 else self.ranks

    @cached_property
    def waited(self) -> frozenset[int]:
        """Ranks that said they waited until a timeout."""
        return frozenset(h.origin.rank for h in self.hits if h.code in WAITED and h.origin.rank is not None)

    @cached_property
    def lost_peer(self) -> frozenset[int]:
        """Ranks that said a peer went away."""
        return frozenset(
            h.origin.rank for h in self.hits if h.code in PEER_LOST and h.origin.rank is not None
        )

    @cached_property
    def suffering(self) -> frozenset[int]:
        """Ranks with any line that is a consequence."""
        return frozenset(h.origin.rank for h in self.hits if h.kind == VICTIM and h.origin.rank is not None)

    @cached_property
    def consequences(self) -> tuple[Hit, ...]:
        """Lines that are consequences of something."""
        return tuple(h for h in self.hits if h.kind == VICTIM and h.code not in ("LOG202",))

    @cached_property
    def first_consequence(self) -> float | None:
        """The earliest time of a consequence."""
        return min((h.origin.time for h in self.consequences if h.origin.time is not None), default=None)

    @cached_property
    def failed_exits(self) -> tuple[Exit, ...]:
        """Exits that are neither good nor ordered by the launcher."""
        return tuple(e for e in self.exits if e.code not in (None, 0, -15, 15, 143))

    @cached_property
    def last(self) -> dict[int, LastLine]:
        """The last line of each rank."""
        return {x.rank: x for x in self.incident.last_lines}

    @cached_property
    def steps(self) -> dict[int, list[StepPoint]]:
        """Progress of each rank."""
        found: dict[int, list[StepPoint]] = {}
        for point in self.incident.steps:
            if point.rank is not None:
                found.setdefault(point.rank, []).append(point)
        return found

    def first_of(self, rank: int, codes: Iterable[str] | None = None) -> Hit | None:
        """The first line of a rank with one of these codes."""
        return next(
            (h for h in self.hits if h.origin.rank == rank and (codes is None or h.code in codes)), None
        )

    def frames_of(self, rank: int) -> tuple[Frame, ...]:
        """The stack that is known of a rank: a traceback, a call site, a dump of its threads."""
        for hit in self.hits:
            if hit.origin.rank == rank and hit.frames:
                return hit.frames
        return next((s.frames for s in self.incident.stacks if s.rank == rank and s.main), ())

    def phase_of(self, rank: int) -> str | None:
        """What a rank was doing, by its stack, else by its last line that is no consequence."""
        if found := phases.of_frames(self.frames_of(rank)):
            return found
        words = self.last_words(rank)
        return phases.of_text(words) if words else None

    def _is_hit(self, last: LastLine) -> bool:
        return any(h.origin.line == last.origin.line and h.origin.file == last.origin.file for h in self.hits)

    def last_words(self, rank: int) -> str:
        """The last line of a rank that is the program's own."""
        last = self.last.get(rank)
        if last is None:
            return ""
        return (last.text if not last.own and not self._is_hit(last) else last.own).strip()[:200]

    def survived(self, hit: Hit) -> bool:
        """Whether the job went on well after a line: later steps, or an end without any failure."""
        if self.failed_exits or self.consequences:
            return False
        return self.went_on(hit) or bool(self.incident.done) or self._ends_well(hit)

    def went_on(self, hit: Hit) -> bool:
        """Whether a file tells of further steps after a line: of its rank, if that one tells of steps at all."""
        at = hit.origin
        here = [p for p in self.incident.steps if p.origin.file == at.file]
        own = [p for p in here if p.rank == at.rank]
        return len({p.step for p in own or here if p.origin.line > at.line}) >= 2

    def is_accounted(self, hit: Hit) -> bool:
        """Whether a line is a record of the scheduler's accounting, which is read as such."""
        at = (hit.origin.file, hit.origin.line)
        return any((a.file, a.line) == at for a in self.incident.accounts)

    def _ends_well(self, hit: Hit) -> bool:
        length = next((i.lines for i in self.incident.inputs if i.name == hit.origin.file), 0)
        return not hit.frames and length - hit.origin.line > TAIL


def proof(hit: Hit) -> Proof:
    """A line as evidence."""
    return Proof(hit.origin.file, hit.origin.line, hit.origin.rank, hit.origin.time, hit.text)


def last_proof(view: View, rank: int) -> tuple[Proof, ...]:
    """A rank's last line as evidence."""
    last = view.last.get(rank)
    return (
        ()
        if last is None
        else (Proof(last.origin.file, last.origin.line, rank, last.origin.time, last.text),)
    )


def exit_proof(entry: Exit) -> Proof:
    """An exit as evidence."""
    words = f"{entry.reporter or 'exit'}: exit code {entry.code}" + (f", {entry.told}" if entry.told else "")
    return Proof(entry.origin.file, entry.origin.line, entry.rank, entry.origin.time, words)


def rank_words(ranks: Iterable[int], most: int = 8) -> str:
    """`rank 3`, `ranks 1, 2 and 5`, `ranks 0-7`."""
    numbers = sorted(set(ranks))
    if not numbers:
        return "no rank"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]}-{numbers[-1]}"
    if len(numbers) > most:
        return f"ranks {', '.join(map(str, numbers[:most]))} and {len(numbers) - most} others"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def derived(code: str, title: str, confidence: str, **rest: object) -> Conclusion:
    """A conclusion of `fsdp_doctor.tables.log_conclusions`, with its row, reason and fix where none is given."""
    kind = CONCLUSIONS[code]
    values: dict[str, object] = {
        "row": kind.row.value if kind.row is not None else None,
        "why": kind.why,
        "fixes": (Remedy(kind.fix, kind.command),),
        "explained": (code,),
    }
    values.update({k: v for k, v in rest.items() if v is not None})
    return Conclusion(code=code, title=title, confidence=confidence, **values)  # type: ignore[arg-type]


def weight(hit: Hit) -> int:
    """The weight of a hit's signature."""
    signature = SIGNATURES.get(hit.code)
    return signature.weight if signature is not None else 0


def unique_proofs(proofs: Iterable[Proof], most: int = MAX_PROOFS) -> tuple[Proof, ...]:
    """Without repetitions, at most `most`."""
    return tuple({(p.file, p.line, p.text): p for p in proofs}.values())[:most]
