"""Text of what the tool knows: its checks, their documentation and the failure table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fsdp_doctor.engine.registry import Registry
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.failure_table import TableRow
from fsdp_doctor.report.escape import one_line
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style

CODE_COLUMN = 8
ROW_COLUMN = 7


def checks_text(registry: Registry, selected: Collection[str], style: Style) -> str:
    """Code, row and title of the selected checks, a line each; of the others too where `style.verbose`."""
    page = Page(style)
    for check in registry.checks:
        on = check.code in selected
        if not on and not style.verbose:
            continue
        _listed(page, check, "" if on else "  (not selected)", "" if on else "dim")
        if style.verbose:
            from_package = f", from {check.package}" if check.package != "fsdp-doctor" else ""
            tags = ", ".join(check.tags) or "no tags"
            page.paragraph(
                [(f"{tags}; cost: {check.cost.value}{from_package}", "dim")], first=" " * 4, hang=4
            )
    for broken in registry.broken:
        page.paragraph(
            [("plug-in ", "bold red"), (f"{broken.package} cannot be used: {broken.reason}", "")], hang=2
        )
    page.blank()
    total = len(registry.checks)
    others = " (--verbose lists the others)" if len(selected) < total and not style.verbose else ""
    said = f"{total} checks, {len(selected)} selected{others}. fsdp-doctor explain CODE tells more."
    page.paragraph([(said, "")])
    return page.text()


def _listed(page: Page, check: CheckSpec, suffix: str, style: str) -> None:
    row = (check.row.value if check.row else "").ljust(ROW_COLUMN)
    first = page.safe(check.code).ljust(CODE_COLUMN) + row
    page.paragraph([(check.title + suffix, style)], first=first, hang=CODE_COLUMN + ROW_COLUMN)


def check_text(check: CheckSpec, style: Style) -> str:
    """The documentation of one check."""
    page = Page(style)
    row = f"  [{check.row.value}]" if check.row else ""
    page.paragraph([(check.code, "bold"), (f"  {check.title}", "bold"), (row, "dim")], hang=2)
    told = check.documentation
    for label, text in (("What", told.what), ("Why", told.why), ("Fix", told.fix), ("Sources", told.sources)):
        page.blank()
        page.labelled(label, text)
    if check.package != "fsdp-doctor":
        page.blank()
        page.labelled("From", check.package)
    return page.text()


def row_text(row: TableRow, checks: Sequence[CheckSpec], style: Style) -> str:
    """One row of the failure table and the checks that judge it."""
    page = Page(style)
    _row(page, row)
    page.blank()
    if not checks:
        page.paragraph([("No check of this row.", "")])
    for check in checks:
        _listed(page, check, "", "")
    return page.text()


def table_text(rows: Sequence[TableRow], style: Style) -> str:
    """The failure table, a block per row, for any width."""
    page = Page(style)
    for number, row in enumerate(rows):
        if number:
            page.blank()
        _row(page, row)
    return page.text()


def _row(page: Page, row: TableRow) -> None:
    page.paragraph([(row.row.value, "bold"), (f"  {row.symptom}", "bold")], hang=2)
    page.labelled("cause", row.cause)
    page.labelled("fix", row.fix)
    page.labelled("adds", row.adds)


def table_markdown(rows: Sequence[TableRow]) -> str:
    """The failure table as a Markdown table."""
    head = (
        "| row | symptom | documented cause | documented fix | what the tool adds |\n|---|---|---|---|---|\n"
    )
    cells = ((f"`{r.row.value}`", r.symptom, r.cause, r.fix, r.adds) for r in rows)
    return head + "".join(f"| {' | '.join(_cell(c) for c in row)} |\n" for row in cells)


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
