"""The processes of ranks while they run: whether they are there, how far they are, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.probe.assemble import Ending
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.settle import Seen

STACK_WAIT = 0.3
"""Seconds in which a rank that was asked writes its stack."""


def alive(journal: Journal) -> bool:
    """Whether the rank's process is there: with this job's file in its command, not another of its number."""
    state = process.process_state(journal.pid)
    if journal.pid is None or state is None or state in ("Z", "X"):
        return False
    try:
        words = Path(f"/proc/{journal.pid}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(journal.folder) in words


def over(journal: Journal) -> bool:
    """Whether the rank is through, or can say nothing any more."""
    return journal.done or journal.error is not None or (journal.begun and not alive(journal))


def look(journal: Journal) -> Seen:
    """The rank at this moment."""
    journal.poll()
    there = alive(journal)
    state = process.process_state(journal.pid) if there else None
    gone = journal.begun and not there and not journal.done
    ended = journal.error is not None or gone
    silent = gone and journal.error is None
    return Seen(
        journal.rank,
        journal.stage,
        journal.steps(),
        state,
        ended,
        silent,
        journal.done,
        journal.begun,
        journal.out_of_time,
    )


def endings(seen: Sequence[Seen], journals: Sequence[Journal], still: frozenset[int]) -> list[Ending]:
    """What is to be said of each rank's end, with the stacks of those that stand still."""
    asked = [j for j in journals if j.rank in still and alive(j)]
    for j in asked:
        _send(j, signal.SIGUSR1)
    if asked:
        time.sleep(STACK_WAIT)
    return [_ending(s, j, still) for s, j in zip(seen, journals, strict=True)]


def _ending(seen: Seen, journal: Journal, still: frozenset[int]) -> Ending:
    running = seen.begun and not seen.ended and not seen.done
    hung = seen.rank in still or (seen.silent and seen.out_of_time)
    return Ending(
        seen.rank,
        hung=hung,
        waiting=running and not hung,
        ended_itself=not running,
        state=seen.state,
        where=process.wait_channel(journal.pid) if running else None,
        stack=journal.stack() if hung else None,
    )


def kill(journals: Sequence[Journal]) -> None:
    """End every rank that is still there; a stopped one too."""
    for j in journals:
        j.poll()
        if alive(j):
            _send(j, signal.SIGKILL)


def _send(journal: Journal, number: signal.Signals) -> None:
    if journal.pid is not None:
        with contextlib.suppress(OSError):
            os.kill(journal.pid, number)
