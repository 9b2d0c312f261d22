"""Commands that did not start: whether the program ran all the same, and which exits that explains."""

from __future__ import annotations

from fsdp_doctor.diagnosis.culprit.lines import NOT_STARTED
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.findings import Row
from fsdp_doctor.subjects.incident import LIKELY, ROOT, Hit
from fsdp_doctor.tables.log_signatures import SIGNATURES

EXIT_CODES = frozenset((1, 2, 13, 125, 126, 127, 255))
"""With which shells (126, 127), Slurm (the number of the error), containers (125, 255) and Python (1, 2) say so."""


def ran_after(view: View, hit: Hit) -> bool:
    """Whether the program ran after a line that says that some command did not start: it was another command.

    What waits for ranks that never started (row nccl) is no such sign.
    """
    at = hit.origin
    if any(p.origin.file == at.file and p.origin.line > at.line for p in view.incident.steps):
        return True
    return any(
        h.kind in (ROOT, LIKELY)
        and h.frames
        and h.code not in NOT_STARTED
        and SIGNATURES[h.code].row is not Row.NCCL
        and (h.origin.file, h.origin.line > at.line) == (at.file, True)
        for h in view.hits
    )


def explains(view: View, code: int | None) -> bool:
    """Whether an exit code is that of a command which could not be started, and a line says so."""
    return code in EXIT_CODES and any(h.code in NOT_STARTED and not ran_after(view, h) for h in view.hits)
