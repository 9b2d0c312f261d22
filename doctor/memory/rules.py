"""Which entries of the table of substitutions a replay asked, and how each stands on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.subjects.memory import RuleUsed
from fsdp_doctor.tables.substitutions import entry

CALIBRATED = "calibrated"


def rules_used(about: Mapping[str, object], sm: int) -> tuple[RuleUsed, ...]:
    """Of a replay's answer, by operator."""
    found: list[RuleUsed] = []
    covered, cudnn = _texts(about, "covered"), about.get("cudnn")
    here = cudnn if isinstance(cudnn, int) else None
    for operator in _texts(about, "rules"):
        of = entry(operator, sm)
        if of is None:
            continue
        mark = CALIBRATED if operator in covered else of.stands(sm, here)
        found.append(RuleUsed(operator, of.kernel, of.saves, of.workspace, mark, of.evidence, of.seen))
    return tuple(found)


def _texts(about: Mapping[str, object], key: str) -> list[str]:
    listed = about.get(key)
    return [str(v) for v in listed] if isinstance(listed, list) else []
