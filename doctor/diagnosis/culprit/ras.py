"""What NCCL's RAS says of a running job: who is gone, who does not answer, who has launched less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof
from fsdp_doctor.subjects.ras import COUNTS, DEAD, SILENT, RasRank, RasReport, RasTrouble
from fsdp_doctor.tables import log_conclusions as codes

SCORE = 82
LAGS = 69
"""Score of a rank that lags and comes on: a straggler."""
GAP = 2
"""Collectives that a rank has to be behind in a single answer: RAS asks one rank after the other."""
ASK_AGAIN = "ncclras a second and a third time, ten seconds apart: do the counts grow?"


def candidates(view: View) -> list[Candidate]:
    """What the last answer says, and what changed since the first."""
    if not view.incident.ras:
        return []
    last = view.incident.ras[-1]
    for kind in (DEAD, SILENT):
        named = [t for t in last.troubles if t.kind == kind]
        if named:
            conclusion = _absent(view, last, named, [t for t in last.troubles if t.kind == SILENT])
            return [Candidate(SCORE, conclusion, 0, frozenset(conclusion.culprits))]
    found = _behind(view, [_counts(r) for r in view.incident.ras], last)
    return [found] if found is not None else []


def _global(view: View, report: RasReport, rank: RasRank, size: int | None = None) -> int | None:
    """The global rank: by its process, else by its number in a communicator of the whole job."""
    by_pid = [r for r, pid in view.incident.job.pids.items() if pid == rank.pid]
    if len(by_pid) == 1:
        return by_pid[0]
    whole = report.largest is not None and report.largest >= (report.gpus or view.world or 0)
    return rank.rank if whole or size == view.world else None


def _place(rank: RasRank) -> str:
    return f"process {rank.pid} on node {rank.host}" + (f", GPU {rank.gpu}" if rank.gpu else "")


def _proofs(report: RasReport, troubles: Iterable[RasTrouble]) -> tuple[Proof, ...]:
    return unique_proofs(
        Proof(report.file, t.line or report.line, t.ranks[0].rank, None, f"RAS: {t.text}") for t in troubles
    )


def _absent(view: View, report: RasReport, named: list[RasTrouble], by_rank: list[RasTrouble]) -> Conclusion:
    """Processes that are dead or do not answer; communicators name the same ones by their rank."""
    dead = named[0].kind == DEAD
    processes = [r for t in named for r in t.ranks if r.pid is not None]
    entries = [t for t in (*named, *by_rank) if t.communicator]
    ranks = {g for t in entries for r in t.ranks if (g := _global(view, report, r)) is not None}
    ranks |= {g for r in processes if (g := _global(view, report, r)) is not None}
    hosts = {r.host for r in processes if r.host}
    who = rank_words(ranks).capitalize() if ranks else "A process of the job"
    are = "are" if len(ranks) > 1 else "is"
    does = (
        f"{are} dead for NCCL's RAS" if dead else f"do{'' if len(ranks) > 1 else 'es'} not answer NCCL's RAS"
    )
    where = f" ({'; '.join(_place(r) for r in processes[:4])})" if processes else ""
    return derived(
        codes.RAS,
        f"{who} {does}{where}",
        "high",
        why=(
            "RAS could not reach it for a minute: it has ended, or its node or network is gone. "
            if dead
            else "It is stopped, hangs in the kernel, has ended, or its node cannot be reached. "
        )
        + codes.CONCLUSIONS[codes.RAS].why,
        culprits=ranks,
        host=hosts.pop() if len(hosts) == 1 else None,
        evidence=_proofs(report, (*named, *by_rank)),
    )


@dataclass(frozen=True, slots=True)
class _Behind:
    """Ranks of one communicator whose counts differ from the crowd's in one operation."""

    trouble: RasTrouble
    odd: tuple[RasRank, ...]
    usual: int

    @property
    def late(self) -> list[RasRank]:
        """Those that have launched fewer operations."""
        return [r for r in self.odd if (r.launched or 0) < self.usual]

    @property
    def least(self) -> int:
        """Operations that the last of them has launched."""
        return min(r.launched or 0 for r in self.odd)


def _counts(report: RasReport) -> list[_Behind]:
    found = []
    for trouble in report.troubles:
        if trouble.kind != COUNTS:
            continue
        listed = [r for r in trouble.ranks if r.launched is not None]
        crowds = [(n, count) for count, n in trouble.others]
        usual = max(crowds)[1] if crowds else max((r.launched or 0 for r in listed), default=0)
        odd = tuple(r for r in listed if r.launched != usual)
        if odd:
            found.append(_Behind(trouble, odd, usual))
    return found


def _behind(view: View, answers: list[list[_Behind]], last: RasReport) -> Candidate | None:
    """The ranks that are furthest behind in the last answer; earlier ones tell whether they move at all."""
    latest = [b for b in answers[-1] if b.late]
    if not latest:
        return None
    one = max(latest, key=lambda b: b.usual - b.least)
    before = _before(answers[:-1], one)
    if before is None and one.usual - one.least < GAP:
        return None  # the next answer may show them level
    stands = before == (one.least, one.usual)
    ranks = frozenset(n for r in one.late if (n := _global(view, last, r)) is not None)
    who = rank_words(ranks).capitalize() if ranks else f"A rank ({_place(one.late[0])})"
    words = "is behind the others"
    if before is not None:
        words = "stands still while the others are ahead" if stands else "lags behind the others and moves on"
    hosts = {r.host for r in one.late if r.host}
    conclusion = derived(
        codes.RAS if before is None or stands else codes.STRAGGLER,
        f"{who} {words}, by NCCL's RAS: {one.least} {one.trouble.operation} operations launched, the others "
        f"{one.usual} ({'; '.join(_place(r) for r in one.late[:2] if r.pid)})",
        "high" if stands else "medium",
        culprits=ranks,
        host=hosts.pop() if len(hosts) == 1 else None,
        evidence=_proofs(last, (one.trouble,)),
        record_next=(ASK_AGAIN,) if before is None else (),
    )
    return Candidate(SCORE if stands else LAGS, conclusion, ranks=ranks)


def _before(answers: list[list[_Behind]], one: _Behind) -> tuple[int, int] | None:
    """What the first answer told of this communicator and operation: the least count, and the usual one."""
    for answer in answers:
        for b in answer:
            if (b.trouble.communicator, b.trouble.operation) == (
                one.trouble.communicator,
                one.trouble.operation,
            ):
                return b.least, b.usual
    return None
