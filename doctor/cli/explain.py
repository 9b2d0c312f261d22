"""`fsdp-doctor explain`: the documentation of a check, or a row of the failure table with its checks."""

from __future__ import annotations

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.reporting import answer
from fsdp_doctor.config import nearest
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.failure_table import TableRow, table_row
from fsdp_doctor.findings import Row


@click.command("explain", short_help="Explain a check or a row of the failure table.")
@common("text", "json")
@click.argument("code_or_row", metavar="CODE|ROW")
def command(settings: Settings, code_or_row: str) -> int:
    """Explain a check (such as GPU001) or a row of the failure table (such as nccl)."""
    from fsdp_doctor.report.catalogue import check_text, row_text

    check = registry().get(code_or_row.upper())
    if check is not None:
        return answer("explain", {"check": _check(check)}, check_text(check, settings.style()), settings)
    rows = tuple(r.value for r in Row)
    if code_or_row.lower() not in rows:
        if any(c.family == code_or_row.upper() for c in registry().checks):
            family = code_or_row.upper()
            raise click.UsageError(
                f"{family} is a family: `fsdp-doctor list --select {family}` names its checks"
            )
        hint = nearest(code_or_row.upper(), tuple(c.code for c in registry().checks), "")
        hint = nearest(
            code_or_row.lower(), rows, hint or f"; rows: {', '.join(rows)}; codes: `fsdp-doctor list`"
        )
        raise click.UsageError(f"no check and no row {code_or_row!r}{hint}")
    row = table_row(Row(code_or_row.lower()))
    checks = tuple(c for c in registry().checks if c.row is row.row)
    data: dict[str, object] = {"row": row_data(row), "checks": [_check(c) for c in checks]}
    return answer("explain", data, row_text(row, checks, settings.style()), settings)


def _check(check: CheckSpec) -> dict[str, object]:
    told = check.documentation
    return {
        "code": check.code,
        "title": check.title,
        "row": check.row,
        "what": told.what,
        "why": told.why,
        "fix": told.fix,
        "sources": told.sources,
        "package": check.package,
    }


def row_data(row: TableRow) -> dict[str, object]:
    """A row of the failure table as JSON values."""
    return {"row": row.row, "symptom": row.symptom, "cause": row.cause, "fix": row.fix, "adds": row.adds}
