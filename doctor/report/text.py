"""Text for people: failures first, passes and skips folded to counts, the verdict on the last line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.findings import SILENT_PASS, Confidence, Fix, Owner, Report, Result, Risk, Status, Verdict
from fsdp_doctor.report.describe import ORDER, codes_words, counts_words, exit_words, subject_words
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style

GLYPH = {
    Status.PASS: "✓",
    Status.INFO: "ℹ",
    Status.WARN: "!",
    Status.FAIL: "✗",
    Status.SKIP: "–",
    Status.ERROR: "☠",
}
ASCII_GLYPH = {
    Status.PASS: "+",
    Status.INFO: "i",
    Status.WARN: "!",
    Status.FAIL: "x",
    Status.SKIP: "-",
    Status.ERROR: "E",
}
COLOUR = {
    Status.PASS: "green",
    Status.INFO: "cyan",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
    Status.ERROR: "bold magenta",
}
VERDICT_COLOUR = {
    Verdict.PASS: "bold green",
    Verdict.WARN: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.INCOMPLETE: "bold magenta",
}
SHOWN_REASONS = 5


def render(report: Report, style: Style) -> str:
    """The report as text. Nothing is cut off: long lines are wrapped, commands with a backslash."""
    page = Page(style)
    _heading(page, report)
    shown = [r for r in report.results if r.suppressed is None]
    for status in ORDER[:4]:
        for result in shown:
            if result.status is status:
                _result(page, result)
    for what in report.unjudged:
        page.paragraph(
            [("NOT JUDGED  ", COLOUR[Status.ERROR]), (what, "")], first=_mark(page, Status.ERROR), hang=2
        )
    _suppressed(page, report.results)
    _fixes(page, report.data.get("fixes"))
    if style.verbose:
        for result in shown:
            if result.status in (Status.PASS, Status.SKIP):
                _brief(page, result)
    else:
        _folded_passes(page, shown)
        _folded_skips(page, shown)
    _last_line(page, report)
    return page.text()


def _mark(page: Page, status: Status) -> str:
    return f"{(ASCII_GLYPH if page.style.ascii else GLYPH)[status]} "


def _heading(page: Page, report: Report) -> None:
    target = report.data.get("target")
    about = f" of {target}" if isinstance(target, str) and target else ""
    said = f"fsdp-doctor {report.tool.get('version', '')} {report.command}{about}"
    page.paragraph([(said, "dim")], hang=2)
    notes = report.data.get("notes")
    for note in notes if isinstance(notes, (list, tuple)) else ():
        page.paragraph([(str(note), "")], first=_mark(page, Status.INFO), hang=2)
    page.blank()


def _result(page: Page, result: Result) -> None:
    colour = COLOUR[result.status]
    parts = [
        (f"{result.status.value.upper()}  ", colour),
        (result.code, "bold"),
        (f"  {result.title}", "bold" if result.status in (Status.FAIL, Status.ERROR) else ""),
    ]
    if result.row and result.status in (Status.FAIL, Status.WARN):
        parts.append((f"  [{result.row.value}]", "dim"))
    if result.confidence is not Confidence.HIGH:
        parts.append((f"  ({result.confidence.value} confidence)", "dim"))
    page.paragraph(parts, first=_mark(page, result.status), hang=2)
    page.labelled("where", subject_words(result.subject))
    page.labelled("found", result.found)
    page.labelled("expected", result.expected)
    page.labelled("why", result.why)
    if result.fix:
        page.labelled("fix", f"{result.fix.text}{_who(result.fix)}")
        if result.fix.command:
            page.command(result.fix.command)
    if page.style.verbose or result.status is Status.ERROR:
        for evidence in result.evidence:
            page.labelled("evidence", evidence.source, "dim")
            page.raw_lines(evidence.text, 6)
    page.blank()


def _brief(page: Page, result: Result) -> None:
    """A pass or a skip on one line: the title of a check names its fault, which a pass did not find."""
    said = result.found
    if result.status is Status.SKIP:
        enable = f" (enable: {result.expected})" if result.expected else ""
        said = f"{result.title}: {result.found}{enable}"
    elif said == SILENT_PASS:
        said = f"not found: {result.title}"
    parts = [
        (f"{result.status.value.upper()}  ", COLOUR[result.status]),
        (result.code, "bold"),
        (f"  {said}", ""),
    ]
    several = result.subject.rank is not None or result.subject.gpu is not None
    if several:
        parts.append((f"  ({subject_words(result.subject)})", "dim"))
    page.paragraph(parts, first=_mark(page, result.status), hang=2)


def _who(fix: Fix) -> str:
    said = []
    if fix.owner is not Owner.YOU:
        said.append("for an administrator" if fix.owner is Owner.ADMIN else "for the hardware's owner")
    if fix.risk is not Risk.SAFE:
        said.append("needs root" if fix.risk is Risk.NEEDS_ROOT else "interrupts what runs on this machine")
    return f" ({', '.join(said)})" if said else ""


def _suppressed(page: Page, results: Iterable[Result]) -> None:
    accepted = [r for r in results if r.suppressed is not None]
    for result in accepted:
        about = subject_words(result.subject)
        said = (
            f"SUPPRESSED  {result.code}  {result.title}{f' ({about})' if about else ''}: {result.suppressed}"
        )
        page.paragraph([(said, "dim")], first=_mark(page, Status.SKIP), hang=2)
        if page.style.verbose:
            page.labelled("found", result.found, "dim")
    if accepted:
        page.blank()


def _fixes(page: Page, fixes: object) -> None:
    if not isinstance(fixes, Sequence) or isinstance(fixes, str) or not fixes:
        return
    page.paragraph([("Fixes", "bold")])
    for fix in fixes:
        if not isinstance(fix, Mapping):
            continue
        outcome = f"  {fix.get('outcome', '')}"
        about = f"  {fix.get('risk', '')}, owner: {fix.get('owner', '')}"
        page.paragraph(
            [(str(fix.get("code", "")), "bold"), (about, "dim"), (outcome, "")], first="  ", hang=4
        )
        page.command(str(fix.get("command", "")))
        for line in str(fix.get("output", "")).splitlines():
            page.raw_lines(line, 6)
    page.blank()


def _folded_passes(page: Page, shown: Sequence[Result]) -> None:
    families: dict[str, int] = {}
    for result in shown:
        if result.status is Status.PASS:
            families[result.code[:3]] = families.get(result.code[:3], 0) + 1
    if families:
        by_family = ", ".join(f"{name} {count}" for name, count in sorted(families.items()))
        parts = [(f"{sum(families.values())} passed", COLOUR[Status.PASS]), (f": {by_family}", "dim")]
        page.paragraph(parts, first=_mark(page, Status.PASS), hang=2)


def _folded_skips(page: Page, shown: Sequence[Result]) -> None:
    skips = [r for r in shown if r.status is Status.SKIP]
    if not skips:
        return
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for result in skips:
        reasons.setdefault((result.found, result.expected), {})[result.code] = None
    page.paragraph([(f"{len(skips)} skipped", COLOUR[Status.SKIP])], first=_mark(page, Status.SKIP), hang=2)
    ranked = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for (reason, enable), codes in ranked[:SHOWN_REASONS]:
        said = f"{reason} ({enable})" if enable else reason
        page.paragraph([(f"{said}: ", ""), (codes_words(codes), "dim")], first="  ", hang=4)
    rest = ranked[SHOWN_REASONS:]
    if rest:
        others = {c for _, found in rest for c in found}
        said = f"{len(rest)} more {'reason' if len(rest) == 1 else 'reasons'}, shown by --verbose: "
        page.paragraph([(said, ""), (codes_words(others), "dim")], first="  ", hang=4)


def _last_line(page: Page, report: Report) -> None:
    if report.results or report.unjudged:
        page.blank()
    said = f": {counts_words(report)} in {report.seconds:.1f} s ({exit_words(report)})"
    page.paragraph([(report.verdict.value.upper(), VERDICT_COLOUR[report.verdict]), (said, "")], hang=2)
