"""How CUDA runs a job's operators otherwise than their shapes say, and how that is known, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsdp_doctor.report.layout import Page
from fsdp_doctor.subjects.memory import RuleUsed

LISTED = 6


def rules_text(page: Page, rules: Sequence[RuleUsed]) -> None:
    """A few lines; nothing where no rule was asked."""
    if not rules:
        return
    page.paragraph([("how CUDA runs operators", "bold")])
    for line in _lines(rules):
        page.paragraph([(line, "")], first="  ", hang=4)


def _lines(rules: Sequence[RuleUsed]) -> Iterable[str]:
    for mark, words in (("measured", "as measured"), ("calibrated", "every call measured by --calibrate")):
        found = [r for r in rules if r.mark == mark]
        if found:
            where = f" ({_where(found)})" if mark == "measured" else ""
            yield f"{words}{where}: {_names(found)}"
    elsewhere = [r for r in rules if r.mark == "assumed" and r.seen]
    if elsewhere:
        yield f"assumed to be as measured elsewhere ({_where(elsewhere)}): {_names(elsewhere)}"
    for evidence in dict.fromkeys(r.evidence for r in rules if r.mark == "assumed" and not r.seen):
        alike = [r for r in rules if r.mark == "assumed" and not r.seen and r.evidence == evidence]
        yield f"assumed: {_names(alike)} ({evidence})"


def _where(rules: Sequence[RuleUsed]) -> str:
    """The fullest of their places, since cuDNN is named for its own operators alone."""
    return max((r.seen for r in rules), key=len)


def _names(rules: Sequence[RuleUsed]) -> str:
    names = [r.operator.removeprefix("aten::") for r in rules]
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
