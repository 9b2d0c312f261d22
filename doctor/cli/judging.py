"""Judge one machine or every rank of a recording within a deadline; an answer exists at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date

from fsdp_doctor.cli.jobwide import Job, is_jobwide
from fsdp_doctor.cli.progress import Waiting, attend, watched
from fsdp_doctor.engine.merge import Merger, node_scoped
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.engine.suppress import Suppression, suppress
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.source import Source
from fsdp_doctor.findings import Result, Status, Subject
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Identity


@dataclass(frozen=True, slots=True)
class RankSource:
    """A machine, or one rank of a recording with the number that its place says."""

    source: Source
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A rank of a recording that cannot be read."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Work:
    """What is judged, and how."""

    checks: tuple[CheckSpec, ...]
    options: Options
    launch: Launch | None = None
    suppressions: tuple[Suppression, ...] = ()
    today: date = date.min
    gathered: bool = False
    """The sources are all ranks of the job that reported, as in a recording."""
    joined: bool = False
    """Other ranks judge themselves; rank 0 judges them together afterwards, not here."""
    noted: Callable[[str], None] | None = None
    """Hears what is waited for."""
    quiet: bool = False
    """Nobody is shown what is waited for."""
    also: tuple[type[object], ...] = ()
    """Facts that are wanted beside those of the checks."""


@dataclass(slots=True)
class Judgement:
    """What is known so far. `facts` are those of the first rank."""

    merger: Merger
    job: Job
    judged_checks: int = 0
    """Of the rank at hand, job-wide ones left out."""
    judged_ranks: int = 0
    judged_job: bool = False
    hosts: dict[str, None] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    world_size: int | None = None
    created: str | None = None
    unreadable: list[Unreadable] = field(default_factory=list)
    facts: Facts | None = None
    stopped_at: str | None = None
    """What was being waited for at the deadline; None where everything was judged."""
    unfinished: int = 0
    error: BaseException | None = None


def judge(sources: Iterable[RankSource | Unreadable], work: Work, until: float | None) -> Judgement:
    """Judge every source, in one pass and with the memory of one; stop at `until` (monotonic seconds).

    At the deadline, checks of the only machine that have no result yet become skips, and their number is
    in `unfinished`; ranks that have none are missing from `ranks`. Checks of the whole job come last, and
    are skipped where not every rank was read. Raises whatever opening a source raised.
    """
    waiting = Waiting(work.noted)
    thread = _Judge(sources, work, waiting)
    thread.start()

    def done(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    if attend(done, waiting, until, work.quiet):
        if thread.state.error is not None:
            raise thread.state.error
        return thread.state
    with thread.lock:
        thread.stopped = True
        state = thread.state
        state.stopped_at = waiting.words()
    if state.judged_ranks == 0:
        late = thread.checks[state.judged_checks :]
        state.unfinished = len(late)
        state.merger.add(_unfinished(late, state.stopped_at))
    if not state.judged_job and not work.joined:
        state.merger.add(run_checks(thread.job.checks, thread.job.facts({}, False), work.options))
    return state


def _unfinished(checks: Iterable[CheckSpec], stopped_at: str) -> Iterator[Result]:
    for check in checks:
        found = f"the deadline came while {stopped_at}"
        yield Result(
            check.code, check.title, check.row, Status.SKIP, Subject(), found, "give more --deadline"
        )


class _Judge(threading.Thread):
    def __init__(self, sources: Iterable[RankSource | Unreadable], work: Work, waiting: Waiting) -> None:
        super().__init__(name="judge", daemon=True)
        self._sources, self._work, self._waiting = sources, work, waiting
        self.job = Job(work.checks, work.launch, work.gathered)
        self.checks = tuple(c for c in work.checks if not is_jobwide(c))
        asked = (k for c in self.checks for k in (*c.needs, *c.uses))
        self._kinds = (*dict.fromkeys((*asked, *self.job.kinds, *self._work.also, Identity)),)
        self.lock = threading.Lock()
        self.stopped = False
        self.state = Judgement(Merger(node_scoped(self.checks)), self.job)

    def run(self) -> None:
        """Judge rank by rank, then the job, until all is done or the deadline has come."""
        try:
            for source in self._sources:
                if isinstance(source, Unreadable):
                    self.state.unreadable.append(source)
                elif not self._rank(source):
                    return
            if self._work.joined:
                return
            silent = {u.rank: f"its recording cannot be read: {u.reason}" for u in self.state.unreadable}
            if self._judge(self.job.checks, self.job.facts(silent, True)):
                self.state.judged_job = True
        except BaseException as error:  # handed to the thread that reports it
            self.state.error = error

    def _rank(self, source: RankSource) -> bool:
        """Judge one rank; false once the deadline has come."""
        facts = collect(
            watched(source.source, self._waiting),
            self._kinds,
            checkpoint=self._work.options.checkpoint,
            launch=self._work.launch,
        )
        if not self._judge(self.checks, facts):
            return False
        self.job.add(facts, source.rank)
        with self.lock:
            if not self.stopped:
                self._finish_rank(facts)
        return not self.stopped

    def _judge(self, checks: Iterable[CheckSpec], facts: Facts) -> bool:
        work = self._work
        for number, check in enumerate(checks):
            self._waiting.note(f"check {check.code}")
            results = suppress(run_checks((check,), facts, work.options), work.suppressions, work.today)
            with self.lock:
                if self.stopped:
                    return False
                self.state.merger.add(results)
                self.state.judged_checks = number + 1
        self._waiting.note(None)
        return True

    def _finish_rank(self, facts: Facts) -> None:
        state = self.state
        state.judged_ranks += 1
        state.judged_checks = 0
        if state.facts is None:
            state.facts = facts
        identity = facts.find(Identity)
        if identity is None:
            return
        if identity.host:
            state.hosts[identity.host] = None
        if identity.rank is not None:
            state.ranks.append(identity.rank)
        if identity.world_size is not None:
            state.world_size = max(state.world_size or 0, identity.world_size)
        state.created = state.created or identity.created
