"""Watches the ranks of this host from outside: a heartbeat, and stacks and dumps when they stand still."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fsdp_doctor.codec import to_json
from fsdp_doctor.diagnosis.live.find import RANKS, NoRanks, number, processes, ranks_below
from fsdp_doctor.diagnosis.live.place import OWN_THREADS
from fsdp_doctor.diagnosis.live.sample import Loads, look
from fsdp_doctor.diagnosis.recording.conduct import log_size
from fsdp_doctor.diagnosis.recording.folder import write_json
from fsdp_doctor.diagnosis.recording.journal import Journal, beat_of
from fsdp_doctor.diagnosis.recording.requests import ask_for_recorders
from fsdp_doctor.diagnosis.recording.stillness import Step, Stillness
from fsdp_doctor.facts.redact import Redactor
from fsdp_doctor.subjects.stacks import LiveJob, RankProcess

BEAT = 10.0
"""Seconds between two beats: reading /proc of eight ranks takes a millisecond."""
LOOK_SECONDS = 30.0
"""For a look that is under way when the job ends."""
ANSWER_SECONDS = 60.0
SETTLE_SECONDS = 3.0
"""In which ranks still say that they were asked for their recorders."""
PASSED = 60.0
"""Seconds after which output that has begun again was no watchdog's that ends a hanging job."""
MARK = "hang"
"""A file in the folder that the tasks of one job share: the task that finds its rank waiting touches it, and
all others then look at theirs, which may stand in code of its own.
"""
SIZES = 5.0
"""Seconds between two looks at the sizes of the ranks' logs."""


class Watch:
    """Looks at the ranks below this process. It reads and asks, and never stops or slows one."""

    def __init__(
        self,
        folder: Path,
        local: Path,
        journal: Journal,
        patience: float,
        say: Callable[[str], None],
        *,
        log_folders: Sequence[Path] = (),
        stop: bool = False,
        loads: Loads | None = None,
        shared: Path | None = None,
    ) -> None:
        """`patience`: seconds without output; `say` tells the user; `stop`: end a job that hangs.

        `loads` answers what the GPUs of ranks do. `shared`: the folder of all tasks, where this is one.
        """
        self._folder, self._local, self._journal = folder, local, journal
        self._say, self._stop, self._logs = say, stop, log_folders
        self._loads = loads
        self._mark = shared / MARK if shared is not None else None
        self._marked = _modified(self._mark)
        self._asked: float | None = None
        now = time.monotonic()
        self._still = Stillness(patience, now)
        self._next_beat, self._next_size, self._size = now, now, 0
        self._pids: tuple[tuple[int, int | None], ...] = ()
        self._looking: threading.Thread | None = None
        self._stop_now = False
        self._looks = 0
        self._taken: list[Path] = []
        self._said, self._said_nobody = "", False
        self._resumed: float | None = None
        self.pids: set[int] = set()
        """All ranks' processes that were seen."""
        self.hangs = 0
        """Times that the job was found hanging."""
        self.last: LiveJob | None = None
        """As it was seen when it hung."""

    def tick(self, output: int) -> bool:
        """A moment passed. Whether to end the job; what goes wrong here is noted and does not concern it."""
        try:
            return self._tick(output)
        except Exception as error:  # watching must not end what is watched
            self._fault(error)
            self._next_beat = time.monotonic() + BEAT
            return False

    def finish(self) -> None:
        """The job has ended: what was taken of a hang that passed long before explains nothing."""
        if self._looking is not None:
            self._looking.join(LOOK_SECONDS)
        if self._asked is not None and self._still.since > self._asked + PASSED:
            self._resumed = self._asked
        if self._resumed is not None and time.monotonic() - self._resumed > PASSED:
            self.last = None
            for path in self._taken:
                path.unlink(missing_ok=True)

    def _tick(self, output: int) -> bool:
        now = time.monotonic()
        if now >= self._next_size:
            self._next_size = now + SIZES
            self._size = log_size(self._logs) if self._logs else 0
        before = self._still.reports
        step = self._still.tick(now, output + self._size)
        if before and not self._still.reports:
            self._resumed = now
            self._journal.event("goes on")
            self._say("there is output again")
        if beat := now >= self._next_beat:
            self._next_beat = now + BEAT
            self._beat(output)
        busy = self._looking is not None and self._looking.is_alive()
        if step is Step.LOOK and not busy:
            self._begin_look(self._look)
        elif beat and not busy and (mark := _modified(self._mark)) > self._marked:
            self._marked = mark
            self._begin_look(self._look_for_others)
        stop, self._stop_now = self._stop_now, False
        return stop

    def _begin_look(self, target: Callable[[], None]) -> None:
        # In a thread: meanwhile the output is passed on.
        self._looking = threading.Thread(target=target, name="look", daemon=True)
        self._looking.start()

    def _beat(self, output: int) -> None:
        if not self._pids or any(not os.path.exists(f"/proc/{p}") for p, _ in self._pids):
            self._pids = self._ranks()
            self.pids |= {p for p, _ in self._pids}
        beats = [beat_of(rank, pid) for pid, rank in self._pids]
        self._journal.beat(output, self._still.quiet, beats)

    def _ranks(self) -> tuple[tuple[int, int | None], ...]:
        try:
            found = ranks_below(processes(), os.getpid())
        except NoRanks:
            return ()
        return tuple((s.pid, number(s.environment, RANKS)) for s in found if s.pid != os.getpid())

    def _look(self) -> None:
        try:
            job = self._seen()
            if job is None:
                self._nobody_here()
            if self._still.looked(job, time.monotonic()) and job is not None:
                self._found_hanging(job)
                self._stop_now = self._stop
        except Exception as error:
            self._fault(error)

    def _seen(self) -> LiveJob | None:
        table = processes()
        try:
            seen = [s for s in ranks_below(table, os.getpid()) if s.pid != os.getpid()]
        except NoRanks:
            return None
        return look(seen, table=table, loads=self._loads) if seen else None

    def _look_for_others(self) -> None:
        """Another task's rank waits: keep where this one's stands, whatever it does."""
        try:
            job = self._seen()
            if job is not None:
                self._asked = time.monotonic()
                self._save(job)
                self._taken += self._recorders()
                self._journal.event("asked", words=job.conclusions[0].words if job.conclusions else "")
        except Exception as error:
            self._fault(error)

    def _recorders(self) -> list[Path]:
        """Dumps of the ranks; what they say when asked is no sign of life."""
        self._still.excuse(time.monotonic() + ANSWER_SECONDS)
        dumps = ask_for_recorders(self._local, self._folder / "flight")
        self._still.excuse(time.monotonic() + SETTLE_SECONDS)
        return list(dumps)

    def _nobody_here(self) -> None:
        """Ranks of other hosts cannot be seen: say so once, and how they can."""
        if not self._said_nobody:
            self._said_nobody = True
            self._say(
                f"no output for {self._still.quiet:.0f} s, and no rank runs on this host; to have the ranks "
                "of every host looked at, let each be started by it: srun … fsdp-doctor run -- COMMAND"
            )

    def _found_hanging(self, job: LiveJob) -> None:
        self.hangs += 1
        self.last, self._resumed = job, None
        quiet = self._still.quiet
        self._save(job)
        if self._mark is not None:
            self._mark.touch()
            self._marked = _modified(self._mark)
        dumps = self._recorders()
        self._taken += dumps
        cause = job.conclusions[0].words if job.conclusions else "their stacks are kept"
        self._journal.event("hang", quiet=round(quiet, 1), words=cause, dumps=len(dumps))
        same = "as before" if cause == self._said else cause
        self._say(f"no output for {quiet:.0f} s, and no rank moves: {same}")
        self._said = cause

    def _save(self, job: LiveJob) -> None:
        """The stacks, as text of the form that py-spy prints, one file per rank, and all as JSON."""
        self._looks += 1
        host = os.uname().nodename
        for process in job.processes:
            if process.threads:
                rank = f"rank_{process.rank}" if process.rank is not None else "rank_unknown"
                path = self._folder / "stacks" / f"{rank}.{host}.{process.pid}.txt"
                path.write_text(stack_text(process), encoding="utf-8", errors="backslashreplace")
                self._taken.append(path)
        bare = replace(job, processes=tuple(replace(p, command=()) for p in job.processes))
        write_json(self._folder / "journal" / f"hang.{host}.{self._looks}.json", to_json(bare))

    def _fault(self, error: Exception) -> None:
        self._journal.event("error", text=f"{type(error).__name__}: {error}"[:400])


def _modified(path: Path | None) -> float:
    try:
        return path.stat().st_mtime if path is not None else 0.0
    except OSError:
        return 0.0


def stack_text(process: RankProcess) -> str:
    """As `py-spy dump` prints it: the main thread first, and of each the innermost frame."""
    lines = [f"Process {process.pid}: {' '.join(Redactor().words(process.command))}"]
    if process.rank is not None:
        lines.append(f"RANK={process.rank} LOCAL_RANK={process.local_rank} WORLD_SIZE={process.world_size}")
    lines.append("")
    threads = [t for t in process.threads if t.name not in OWN_THREADS]
    for i, thread in enumerate(sorted(threads, key=lambda t: not t.main)):
        name = "MainThread" if thread.main else thread.name or f"Thread-{i}"
        lines.append(f'Thread {process.pid + i} (idle): "{name}"')
        lines += [f"    {f.function} ({f.file}:{f.line or 0})" for f in reversed(thread.frames)]
    return "\n".join([*lines, ""])
