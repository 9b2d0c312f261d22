"""`fsdp-doctor list`: every check, and whether the selection runs it."""

from __future__ import annotations

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.reporting import answer
from fsdp_doctor.cli.selecting import chosen
from fsdp_doctor.engine.registry import registry


@click.command("list", short_help="List the checks.")
@common("text", "json")
def command(settings: Settings) -> int:
    """List the checks that --select and --ignore leave, with their rows of the failure table."""
    from fsdp_doctor.report.catalogue import checks_text

    wanted = chosen(settings)
    checks = registry().checks
    selected = {c.code for c in checks if wanted.includes(c.code)}
    data: dict[str, object] = {
        "checks": [
            {
                "code": c.code,
                "title": c.title,
                "row": c.row,
                "selected": c.code in selected,
                "tags": list(c.tags),
                "cost": c.cost,
                "package": c.package,
            }
            for c in checks
        ],
        "broken_plugins": [{"package": b.package, "reason": b.reason} for b in registry().broken],
    }
    return answer("list", data, checks_text(registry(), selected, settings.style()), settings)
