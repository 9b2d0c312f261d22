"""Who is missing among those that waited: ranks, or all of a node, that should be there and said nothing."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import PEER_LOST, STORE_LOST
from fsdp_doctor.diagnosis.culprit.proofs import exit_proof, last_proof, proof
from fsdp_doctor.diagnosis.culprit.signals import SIGTERM, signal_of
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import VICTIM, Exit
from fsdp_doctor.tables import log_conclusions as codes

FEW = 0.25
"""Share of the ranks up to which those that said nothing are suspects, and not just logs that are missing."""
SEEN, UNSEEN, TELLING = 70, 56, 4
"""Scores of a rank that was seen and of one that was not, and what its last words or its stop add."""


def candidates(view: View) -> list[Candidate]:
    """Ranks that said nothing while at least half of the others waited for somebody."""
    waiting = _waiting(view)
    if not waiting or view.world is None:
        return []
    missing = view.expected - waiting - _heard(view)
    if not view.waited:
        missing -= _stopped_by_launcher(view)
    if not missing or 2 * len(waiting) < len(view.expected - missing):
        return []
    if (host := _whole_node(view, missing)) is not None:
        return [_node(view, host, missing, waiting)]
    seen = missing & view.ranks
    suspects = _least_advanced(view, seen or missing)
    if len(suspects) > max(1, FEW * len(view.expected)):
        return []
    if not seen and not _is_sure_to_exist(view, missing):
        return []
    return [_suspects(view, suspects, waiting, bool(seen))]


def _waiting(view: View) -> frozenset[int]:
    """Ranks that waited or lost a peer. Who lost the store while others timed out was still at work then."""
    if not view.waited:
        return view.lost_peer
    return view.waited | view.ranks_that_said(PEER_LOST - {STORE_LOST})


def _heard(view: View) -> frozenset[int]:
    """Ranks that said how they failed, or whose exit says it."""
    spoke = (h.origin.rank for h in view.told if not (h.code == STORE_LOST and view.waited))
    failed = (e.rank for e in view.failed_exits if not view.is_escalated(e))
    return frozenset(r for r in (*spoke, *failed) if r is not None)


def _stopped_by_launcher(view: View) -> frozenset[int]:
    """Ranks that were still there to be stopped: no peer of theirs lost them."""
    return frozenset(e.rank for e in view.exits if e.rank is not None and signal_of(e.code) == SIGTERM)


def _is_sure_to_exist(view: View, missing: frozenset[int]) -> bool:
    """Whether ranks that no line names are missing from the job, and not just from a world size that was inferred."""
    return len(view.expected) - len(missing) >= 2 and (view.incident.job.stated or len(missing) == 1)


def _least_advanced(view: View, ranks: frozenset[int]) -> frozenset[int]:
    """Of several silent ranks, those whose last step is behind everyone's; all of them where none is behind."""
    last = {r: max(p.step for p in points) for r, points in view.steps.items()}
    others = [s for r, s in last.items() if r not in ranks]
    lowest = min((last[r] for r in ranks if r in last), default=None)
    if lowest is None or not others or lowest >= min(others):
        return ranks
    return frozenset(r for r in ranks if last.get(r) == lowest)


# a rank


def _suspects(view: View, suspects: frozenset[int], waiting: frozenset[int], seen: bool) -> Candidate:
    one = min(suspects)
    ended = [e for e in view.exits if e.rank in suspects]
    stopped = any(signal_of(e.code) == SIGTERM or view.is_escalated(e) for e in ended)
    words, phase = view.last_words(one), view.phase_of(one)
    who = rank_words(suspects).capitalize()
    if _left(view, suspects, stopped):
        code, title = codes.LEFT_EARLY, f"{who} ended without an error while the others still waited for it"
    else:
        code = codes.NEVER_ENTERED
        title = f"{who} never entered the collective in which {rank_words(waiting)} timed out"
    first = next((h for h in view.hits if h.origin.rank in waiting and h.kind == VICTIM), None)
    conclusion = derived(
        code,
        title + (f" (it was busy with: {phase})" if phase is not None else ""),
        "high" if stopped and words else "medium",
        why=f"{rank_words(waiting).capitalize()} waited, and said so; {rank_words(suspects)} did not."
        f"{_how_stopped(view, ended, stopped)}{_said(words, seen)} {codes.CONCLUSIONS[code].why}",
        culprits=suspects,
        victims=waiting,
        evidence=(
            *last_proof(view, *sorted(suspects)),
            *((proof(first),) if first else ()),
            *map(exit_proof, ended),
        ),
        record_next=("the stack of that rank while it hangs: py-spy dump --pid PID",),
    )
    if phase == phases.SAVE:
        conclusion = replace(conclusion, row="save")
    score = (SEEN if seen else UNSEEN) + (TELLING if stopped or words else 0)
    return Candidate(score, conclusion, ranks=suspects)


def _left(view: View, suspects: frozenset[int], stopped: bool) -> bool:
    """Whether the ranks ended by themselves: they say so, or most others lost a peer rather than patience."""
    closed = len(view.lost_peer) > len(view.waited) and not stopped
    return closed or bool(suspects & frozenset(view.incident.done))


def _how_stopped(view: View, ended: list[Exit], stopped: bool) -> str:
    if any(view.is_escalated(e) for e in ended):
        return " It did not even heed SIGTERM and was killed: a stopped process, or one stuck in the kernel."
    return " torchrun had to stop it, so it was alive and stuck." if stopped else ""


def _said(words: str, seen: bool) -> str:
    if words:
        return f" Its last words: “{words}”."
    return "" if seen else " It printed nothing that is in these logs."


# a node


def _whole_node(view: View, missing: frozenset[int]) -> str | None:
    """The host whose ranks, and only those, are missing."""
    hosts = view.incident.job.hosts
    names = {hosts.get(r) for r in missing}
    if len(names) != 1 or len(missing) < 2 or len(set(hosts.values())) < 2:
        return None
    name = names.pop()
    return name if name is not None and {r for r, h in hosts.items() if h == name} <= missing else None


def _node(view: View, host: str, missing: frozenset[int], waiting: frozenset[int]) -> Candidate:
    conclusion = derived(
        codes.NODE_LOST,
        f"All ranks of {host} ({rank_words(missing)}) went silent while the others waited",
        "high",
        culprits=missing,
        host=host,
        victims=waiting,
        evidence=last_proof(view, *sorted(missing)),
    )
    return Candidate(79, conclusion, ranks=missing)
