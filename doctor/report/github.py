"""GitHub workflow commands: an annotation per finding, and one notice with the verdict."""

from __future__ import annotations

from fsdp_doctor.findings import Report, Result, Status, Verdict
from fsdp_doctor.report.describe import ORDER, counts_words, exit_words, subject_words
from fsdp_doctor.report.escape import lines, one_line

_LEVEL = {Status.FAIL: "error", Status.ERROR: "error", Status.WARN: "warning", Status.INFO: "notice"}


def render(report: Report) -> str:
    """The report as workflow commands. Passes, skips and suppressed results are only counted."""
    shown = [r for r in report.results if r.status in _LEVEL and r.suppressed is None]
    shown.sort(key=lambda r: ORDER.index(r.status))
    said = [_annotation(r, report.strict) for r in shown]
    said += [_command("error", {"title": "not judged"}, one_line(u)) for u in report.unjudged]
    level = {Verdict.FAIL: "error", Verdict.INCOMPLETE: "error", Verdict.WARN: "warning"}.get(
        report.verdict, "notice"
    )
    summary = (
        f"{report.verdict.value}: {counts_words(report)} in {report.seconds:.1f} s ({exit_words(report)})"
    )
    said.append(_command(level, {"title": f"fsdp-doctor {report.command}"}, one_line(summary)))
    return "\n".join(said) + "\n"


def _annotation(result: Result, strict: bool) -> str:
    level = "error" if strict and result.status is Status.WARN else _LEVEL[result.status]
    properties: dict[str, str] = {}
    if result.subject.file:
        properties["file"] = result.subject.file
        if result.subject.line is not None:
            properties["line"] = str(result.subject.line)
    properties["title"] = f"{result.code} {result.title}"
    about = subject_words(result.subject)
    parts = [
        about,
        f"found: {result.found}",
        f"expected: {result.expected}" if result.expected else "",
        f"why: {result.why}" if result.why else "",
    ]
    if result.fix:
        parts.append(f"fix: {result.fix.text}")
        if result.fix.command:
            parts += [f"$ {line}" for line in lines(result.fix.command)]
    return _command(level, properties, "\n".join(one_line(p) for p in parts if p))


def _command(level: str, properties: dict[str, str], message: str) -> str:
    said = ",".join(f"{k}={_property(v)}" for k, v in properties.items())
    return f"::{level} {said}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")
