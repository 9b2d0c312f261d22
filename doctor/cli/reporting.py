"""From a report to its destination: one renderer per format, imported when it is asked for."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import click

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.discretion import discreet
from fsdp_doctor.findings import Report
from fsdp_doctor.report.describe import counts_words


def now() -> str:
    """The time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def rendered(report: Report, settings: Settings) -> str:
    """The report in the format that was asked for, without secrets."""
    report = discreet(report)
    if settings.format == "json":
        from fsdp_doctor.report.json import render
    elif settings.format == "junit":
        from fsdp_doctor.report.junit import render
    elif settings.format == "github":
        from fsdp_doctor.report.github import render
    else:
        from fsdp_doctor.report.text import render as render_text

        return render_text(report, settings.style())
    return render(report)


def deliver(report: Report, settings: Settings) -> int:
    """Render, write, and return the exit status."""
    summary = f"{report.verdict.value}: {counts_words(report)}"
    settings.deliver(rendered(report, settings), summary)
    return report.exit_code


def answer(command: str, data: dict[str, object], text: str, settings: Settings) -> int:
    """Deliver a command's answer that holds no results: its figures as JSON, or its own text."""
    if settings.format == "json":
        from fsdp_doctor.cli.version import tool
        from fsdp_doctor.report.json import render

        began = click.get_current_context().obj
        seconds = time.monotonic() - began if isinstance(began, float) else 0.0
        settings.deliver(render(Report(command, (), tool(), now(), seconds, data)))
    else:
        settings.deliver(text)
    return 0
