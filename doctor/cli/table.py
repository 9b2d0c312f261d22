"""`fsdp-doctor table`: the failure table."""

from __future__ import annotations

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.explain import row_data
from fsdp_doctor.cli.reporting import answer
from fsdp_doctor.failure_table import FAILURE_TABLE


@click.command("table", short_help="Print the failure table.")
@common("text", "json", "markdown")
def command(settings: Settings) -> int:
    """Print the failure table: symptoms of FSDP training, what is documented, and what this tool adds."""
    from fsdp_doctor.report.catalogue import table_markdown, table_text

    if settings.format == "markdown":
        text = table_markdown(FAILURE_TABLE)
    else:
        text = table_text(FAILURE_TABLE, settings.style())
    return answer("table", {"rows": [row_data(r) for r in FAILURE_TABLE]}, text, settings)
