"""How processes ended of which no line says why: by a signal, or with an exit code."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import exit_proof, last_proof
from fsdp_doctor.diagnosis.culprit.signals import CRASHES, SIGABRT, SIGBUS, SIGKILL, signal_of
from fsdp_doctor.diagnosis.culprit.starting import explains
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import LIKELY, ROOT, Exit
from fsdp_doctor.tables import log_conclusions as codes

FROM_OUTSIDE = (SIGKILL, *CRASHES)
"""Signals that a process cannot explain itself, whatever it printed before."""
EXCEPTION = 1
"""The exit code of a Python exception that nobody caught."""
NOT_RUN = {
    126: "the shell's word for a command that it could not run (no right to execute it)",
    127: "the shell's word for a command that it did not find",
}


def candidates(view: View) -> list[Candidate]:
    """The most telling exit; ranks that the same signal ended are taken together."""
    exits = [e for e in view.failed_exits if not _is_explained(view, e) and not view.is_escalated(e)]
    if not exits:
        return []
    told = min(exits, key=lambda e: (_order(e), not e.first, e.origin.line))
    same = [e for e in exits if e.code == told.code] if signal_of(told.code) in FROM_OUTSIDE else [told]
    ranks = frozenset(e.rank for e in same if e.rank is not None)
    meaning = _meaning(view, told.code, ranks)
    conclusion = derived(
        meaning.code,
        f"{rank_words(ranks).capitalize() if ranks else 'A process'} {meaning.words}",
        meaning.confidence,
        culprits=ranks if meaning.own else (),
        victims=view.suffering - ranks,
        host=next((e.host for e in same if e.host), None),
        evidence=(*map(exit_proof, same), *last_proof(view, *sorted(ranks))),
        alternatives=meaning.alternatives,
        record_next=meaning.record_next,
    )
    return [Candidate(meaning.score, conclusion, ranks=ranks, own=meaning.own)]


def _is_explained(view: View, entry: Exit) -> bool:
    """Whether lines say why a process ended: its own error, or that it gave up waiting."""
    if signal_of(entry.code) in FROM_OUTSIDE:
        return False
    if explains(view, entry.code):
        return True
    if any(h.origin.rank == entry.rank for h in view.told):
        return entry.rank is not None or entry.code == EXCEPTION
    # An error without a rank's name is most likely this one's.
    return entry.code == EXCEPTION and any(
        h.origin.rank is None and h.kind in (ROOT, LIKELY) for h in view.hits
    )


def _order(entry: Exit) -> int:
    """Signals from outside tell most; an abort least: a process mostly does it after another's failure."""
    signal = signal_of(entry.code)
    if signal in FROM_OUTSIDE:
        return 0
    if signal == SIGABRT:
        return 3
    return 2 if entry.code == EXCEPTION else 1


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What an exit code says."""

    score: float
    code: str
    words: str
    confidence: str
    own: bool = True
    alternatives: tuple[str, ...] = ()
    record_next: tuple[str, ...] = ()


def _meaning(view: View, code: int | None, ranks: frozenset[int]) -> _Meaning:
    signal = signal_of(code)
    if signal == SIGKILL:
        words = f"{'were' if len(ranks) > 1 else 'was'} killed (SIGKILL): most likely out of host memory"
        others = ("the scheduler or a person killed it",)
        record = ("the kernel log of that host: dmesg -T",)
        return _Meaning(77, codes.KILLED, words, "medium", alternatives=others, record_next=record)
    if signal in CRASHES:
        more = ": /dev/shm is full or a mapped file was truncated" if signal == SIGBUS else ""
        words = f"crashed natively ({CRASHES[signal]}){more}{_crash_site(view, ranks)}"
        return _Meaning(78, codes.CRASHED, words, "high")
    if signal == SIGABRT:
        return _Meaning(30, codes.CRASHED, "aborted itself (SIGABRT)", "low", own=False)
    if code == EXCEPTION:
        words = "failed with an error that is not in these logs (exit code 1)"
        return _Meaning(64 if view.consequences else 52, codes.ERROR_HIDDEN, words, "medium")
    if told := NOT_RUN.get(code or 0):
        words = f"ended with exit code {code}: {told}"
        return _Meaning(73, codes.EXITED, words, "medium", own=False)
    words = f"ended with exit code {code} and no traceback (sys.exit or os._exit)"
    return _Meaning(73, codes.EXITED, words, "high" if ranks else "medium")


def _crash_site(view: View, ranks: frozenset[int]) -> str:
    """Where a crash was, by the stack that faulthandler printed: its innermost frame called into C."""
    frames = next((f for r in sorted(ranks) if (f := view.frames_of(r))), ())
    if not frames:
        return ""
    own, inner = phases.own_frame(frames), frames[-1]
    called = f", called from {phases.frame_words(own)}" if own is not None and own is not inner else ""
    return f" in {phases.frame_words(inner)}{called}"
