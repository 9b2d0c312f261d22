"""What libraries found when they compared the ranks' collectives themselves: torch's debug mode, and gloo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import with_activity
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import GLOO_OTHER_SIZE, OTHER_COLLECTIVE
from fsdp_doctor.diagnosis.culprit.majority import minority
from fsdp_doctor.diagnosis.culprit.proofs import last_proof, proof
from fsdp_doctor.diagnosis.culprit.signals import SIGABRT, signal_of
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import Frame, Hit
from fsdp_doctor.tables import log_conclusions as codes

Fingerprint = tuple[str, str, str]
"""Operation, shape and dtype of a collective, as torch prints them."""


def candidates(view: View) -> list[Candidate]:
    """The ranks whose collective did not fit the others'."""
    ways = (_compared(view), _aborted(view))
    return [c for c in ways if c is not None]


def _compared(view: View) -> Candidate | None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares ranks in pairs: the rank in the minority is the odd one."""
    hits = [h for h in view.hits if h.code == OTHER_COLLECTIVE]
    if not hits:
        return None
    ran = _fingerprints(hits)
    odd = minority(ran)
    words = "; ".join(
        f"{rank_words(r for r, f in ran.items() if f == what)}: {_words(what)}"
        for what in dict.fromkeys(ran.values())
    )
    title = f"The ranks ran different collectives: {words}"
    code = codes.DIVERGED
    if odd:
        title = f"{rank_words(odd).capitalize()} ran another collective than the others: {words}"
        one_operation = len({operation for operation, _, _ in ran.values()}) == 1
        code = codes.OTHER_SIZE if one_operation else codes.OTHER_OPERATION
    conclusion = derived(
        code,
        title,
        "high",
        culprits=odd,
        victims=view.suffering - odd,
        evidence=map(proof, hits),
        explained=(code, OTHER_COLLECTIVE),
    )
    return Candidate(90, with_activity(view, conclusion, odd), hits[0].order, frozenset(ran))


def _fingerprints(hits: Iterable[Hit]) -> dict[int, Fingerprint]:
    """What each rank ran, as the first line about it tells; a line compares two ranks, `a` and `b`."""
    found: dict[int, Fingerprint] = {}
    for hit in hits:
        f = hit.fields
        for side in ("a", "b"):
            if side in f:
                what = (f.get(f"op{side}", ""), f.get(f"sh{side}", ""), f.get(f"dt{side}", ""))
                found.setdefault(int(f[side]), what)
    return found


def _words(what: Fingerprint) -> str:
    operation, shape, dtype = what
    sizes = [int(n) for n in re.findall(r"\d+", shape)]
    many = f" ({prod(sizes)} elements)" if len(sizes) > 1 else ""
    return operation + (f" of [{shape}]{many}" if shape else "") + (f" {dtype}" if dtype else "")


def _aborted(view: View) -> Candidate | None:
    """Gloo aborts the process that receives more than it expects. Where all others stand in the same gather
    of FSDP's parameters, whose size is the same everywhere, the one that aborted ran something else.
    """
    hits = [h for h in view.hits if h.code == GLOO_OTHER_SIZE]
    ended = (e.rank for e in view.exits if signal_of(e.code) == SIGABRT)
    aborted = frozenset(r for r in ended if r is not None)
    others = view.expected - aborted
    if not hits or len(aborted) != 1 or len(others) < 2:
        return None
    if not _in_one_gather([view.frames_of(r) for r in others]):
        return None
    (rank,) = aborted
    conclusion = derived(
        codes.OTHER_OPERATION,
        f"Rank {rank} ran another collective while {rank_words(others)} gathered the parameters of an FSDP "
        "unit",
        "medium",
        culprits=aborted,
        victims=others,
        evidence=(*map(proof, hits), *last_proof(view, rank)),
        explained=(codes.OTHER_OPERATION, GLOO_OTHER_SIZE),
    )
    return Candidate(72, with_activity(view, conclusion, aborted), hits[0].order, view.expected)


def _in_one_gather(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Whether all stacks are known, come from the same line of the program and gather FSDP's parameters."""
    owns = [phases.own_frame(s) for s in stacks]
    sites = {(own.file, own.line) if own is not None else None for own in owns}
    gathers = all(any("_fsdp_" in f.file or "unshard" in f.function for f in s) for s in stacks)
    return len(sites) == 1 and gathers
