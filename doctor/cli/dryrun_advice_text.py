"""What other configurations of a job come to: as tables for people and as JSON values."""

from __future__ import annotations

from fsdp_doctor.cli.dryrun_advice import Extra, Largest, Row
from fsdp_doctor.memory.advice.trial import Outcome
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory_advice import MeasuredChange, MemoryAdvice
from fsdp_doctor.tables.units import memory_size as size


def render(extra: Extra, style: Style) -> str:
    """The tables below the forecast; nothing where nothing was asked for."""
    page = Page(style)
    if extra.rows:
        _strategies(page, extra.rows)
    for found in extra.largest:
        _largest(page, found)
    if extra.advice is not None:
        _advice(page, extra.advice)
    return page.text() if extra.rows or extra.largest or extra.advice is not None else ""


def _strategies(page: Page, rows: tuple[Row, ...]) -> None:
    page.paragraph([("This model under each strategy", "bold"), (" (peak allocated, needed per GPU)", "")])
    width = max(len(r.strategy.name) for r in rows)
    for row in rows:
        o = row.outcome
        if isinstance(o, Outcome):
            fits = "" if o.fits is None else "  fits" if o.fits else "  does not fit"
            said = f"{size(o.allocated):>12}{size(o.needed):>12}{fits}"
        else:
            said = f"  {o.why or 'there was no time'}"
        first = f"  {row.strategy.name:<{width}}"
        page.paragraph([(said, "")], first=first, hang=width + 4)
    page.blank()


def _largest(page: Page, found: Largest) -> None:
    by, f = found.scale, found.found
    what = f"largest {by.name} that fits: "
    if f.value is None:
        page.paragraph([(what + "none is known", "bold"), (f" ({f.why})", "")], hang=2)
    else:
        said = "none" if f.value == 0 else str(f.value)
        steps = f", in steps of {by.step}" if by.step > 1 else ""
        page.paragraph([(what + said, "bold"), (f" (now {by.value}{steps})", "")], hang=2)
    points = {p.value: p.needed for p in f.points}
    if f.value and points.get(f.value) is not None:
        page.paragraph(
            [(f"{by.name} {f.value} {_room(points[f.value] or 0, found)}, replayed", "")], first="  ", hang=4
        )
    if f.next is not None:
        why = _room(f.next.needed, found) if f.next.needed is not None else f.next.why
        page.paragraph([(f"{by.name} {f.next.value} {why}, replayed", "")], first="  ", hang=4)
    if not f.confirmed:
        page.paragraph([(f"not settled: {f.why}", "")], first="  ", hang=4)
    page.blank()


def _room(needed: int, found: Largest) -> str:
    """What one value needs, and how far that is from what there is."""
    left = found.capacity - needed
    return f"needs {size(needed)}, {size(abs(left))} {'less' if left >= 0 else 'more'} than there is"


def _advice(page: Page, advice: MemoryAdvice) -> None:
    page.paragraph([("Single changes, each replayed, the best first", "bold")])
    for row in advice.changes:
        _change(page, row)
    if not advice.changes:
        page.paragraph([("none of them saves anything worth it", "")], first="  ", hang=4)
    if advice.together is not None:
        page.paragraph([("Together, since none of them is enough alone", "bold")])
        _change(page, advice.together)
    for title, names in (
        ("no help", advice.no_help),
        ("cannot be run", tuple(f"{name}: {why}" for name, why in advice.refused)),
        ("not tried, for lack of time", advice.untried),
    ):
        if names:
            page.paragraph([(f"{title}: {'; '.join(names)}", "dim")], first="  ", hang=4)
    page.paragraph([(advice.basis, "dim")], first="  ", hang=4)
    page.blank()


def _change(page: Page, row: MeasuredChange) -> None:
    slower = "slowdown unknown" if row.slowdown is None else f"{row.slowdown:+.0%} step time"
    fits = "" if row.fits is None else ", fits" if row.fits else ", does not fit"
    page.paragraph(
        [
            (f"saves {size(row.saves)}" if row.saves else "changes what is reserved", "bold"),
            (f", {slower}: {row.change}; peak {size(row.allocated)}, needs {size(row.needed)}{fits}", ""),
        ],
        first="  ",
        hang=4,
    )
    page.paragraph([(f"{row.flags}   ({row.cost})", "dim")], first="    ", hang=6)


def data(extra: Extra) -> dict[str, object]:
    """Fields of a report's `data`: those that were asked for."""
    told: dict[str, object] = {}
    if extra.rows:
        told["strategies"] = [_row(r) for r in extra.rows]
    if extra.largest:
        told["largest"] = [_found(x) for x in extra.largest]
    if extra.advice is not None:
        told["advice"] = [_told(c) for c in extra.advice.changes]
        told["advice_together"] = None if extra.advice.together is None else _told(extra.advice.together)
        told["advice_no_help"] = list(extra.advice.no_help)
        told["advice_refused"] = [{"change": c, "why": why} for c, why in extra.advice.refused]
        told["advice_untried"] = list(extra.advice.untried)
        told["advice_basis"] = extra.advice.basis
    return told


def _row(row: Row) -> dict[str, object]:
    o = row.outcome
    if not isinstance(o, Outcome):
        return {"strategy": row.strategy.name, "why_not": o.why or "there was no time"}
    return {
        "strategy": row.strategy.name,
        "allocated_bytes": o.allocated,
        "reserved_bytes": o.reserved,
        "needed_bytes": o.needed,
        "fits": o.fits,
    }


def _found(found: Largest) -> dict[str, object]:
    f = found.found
    return {
        "argument": found.scale.name,
        "now": found.scale.value,
        "largest": f.value,
        "next": None if f.next is None else f.next.value,
        "confirmed": f.confirmed,
        "why": f.why or None,
        "replays": [{"value": p.value, "needed_bytes": p.needed, "why_not": p.why or None} for p in f.points],
    }


def _told(change: MeasuredChange) -> dict[str, object]:
    return {
        "change": change.change,
        "flags": change.flags,
        "saves_bytes": change.saves,
        "allocated_bytes": change.allocated,
        "needed_bytes": change.needed,
        "fits": change.fits,
        "slowdown": change.slowdown,
        "cost": change.cost,
        "basis": change.basis,
    }
