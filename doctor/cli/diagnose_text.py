"""A diagnosis as text: the answer first, then its proof, then the ranks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from fsdp_doctor.findings import Report, Status, Verdict
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.tables.log_conclusions import MEMORY_SNAPSHOT

SNAPSHOTS = 16
COLOURS = {
    Verdict.FAIL: "bold red",
    Verdict.WARN: "bold yellow",
    Verdict.INCOMPLETE: "bold yellow",
    Verdict.PASS: "bold green",
}
PROOFS = 4
LONGEST = 320
"""Characters of a line of a log that are shown."""
RUNS = 16
NUMBER = re.compile(r"\d+(?:\.\d+)?")
RANKS = 64


def render(report: Report, style: Style, table: bool) -> str:
    """The text of a report of `diagnose`; `table` adds one line per rank."""
    page = Page(style)
    data = report.data
    cause = _map(data.get("cause"))
    colour = COLOURS[report.verdict] if style.colour else ""
    inputs = _maps(data.get("inputs"))
    size = data.get("world_size")
    folder = _folder(inputs)
    what = f"{len(inputs)} input{'s' if len(inputs) != 1 else ''}"
    what += f" in {folder}" if folder else ""
    what += f", {size} rank{'s' if size != 1 else ''}" if size else ""
    page.paragraph([("fsdp-doctor diagnose: ", "bold"), (what, "")], hang=2)
    page.blank()
    if not cause:
        nothing = report.verdict is Verdict.PASS
        page.paragraph([("No failure found." if nothing else "Nothing could be diagnosed.", colour)], hang=2)
    else:
        _cause(page, cause, data, colour, style.verbose, folder)
        for other in _maps(data.get("other_causes")):
            page.blank()
            page.paragraph([("Also, apart from it: ", "bold"), (str(other.get("title")), "")], hang=2)
            for line in _proofs(_maps(other.get("evidence"))[:1], folder):
                page.labelled("proof", line)
            for fix in _maps(other.get("fixes"))[:1]:
                page.labelled("fix", str(fix.get("text")))
    _snapshots(page, report)
    if table or style.verbose:
        _ranks(page, _maps(data.get("ranks")))
    if style.verbose and data.get("timeline"):
        page.blank()
        page.paragraph([("What happened, in order", "bold")])
        for line in _texts(data.get("timeline")):
            page.paragraph([(line, "")], first="  ", hang=4)
    if cause:
        page.blank()
        page.paragraph([("To paste into an issue", "bold")])
        page.paragraph([(_inside(str(data.get("summary")), folder), "")], first="  ", hang=2)
    notes = dict.fromkeys((*_texts(data.get("notes")), *report.unjudged))
    if notes:
        page.blank()
        for note in notes:
            page.paragraph([(note, "dim")], first="note: ", hang=6)
    page.blank()
    hint = "" if table or style.verbose else "; --table shows every rank, --verbose what happened in order"
    page.paragraph(
        [(report.verdict.value.upper(), colour), (f" in {report.seconds:.1f} s{hint}", "")], hang=2
    )
    return page.text()


def _cause(
    page: Page,
    cause: Mapping[str, object],
    data: Mapping[str, object],
    colour: str,
    verbose: bool,
    folder: str,
) -> None:
    page.paragraph([(str(cause.get("title")), colour)], hang=2)
    row = cause.get("row")
    place = f"row {row}" if row else "outside the failure table"
    page.labelled("code", f"{cause.get('code')}, {place}, confidence {cause.get('confidence')}")
    ranks = data.get("culprit_ranks")
    if isinstance(ranks, list) and ranks:
        host = f" on {cause['host']}" if cause.get("host") else ""
        page.labelled("culprit", f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)}{host}")
    elif cause.get("host"):
        page.labelled("host", str(cause["host"]))
    page.labelled("why", str(cause.get("why") or ""))
    evidence = _maps(data.get("evidence"))
    lines = _proofs(evidence, folder, None) if verbose else _proofs(evidence, folder)[:PROOFS]
    for number, line in enumerate(lines):
        page.labelled("proof" if number == 0 else "", line)
    victims = data.get("victims")
    if isinstance(victims, list) and victims:
        plural = "s" if len(victims) != 1 else ""
        page.labelled("victims", f"{len(victims)} rank{plural} only suffered: {_ranges(victims)}")
    for number, fix in enumerate(_maps(data.get("fixes"))):
        page.labelled("fix" if number == 0 else "or", str(fix.get("text")))
        if fix.get("command"):
            page.command(str(fix["command"]))
    for other in _texts(data.get("alternatives")):
        page.labelled("else", other)
    for record in _texts(data.get("record_next")):
        page.labelled("record", record)


def _ranks(page: Page, ranks: Sequence[Mapping[str, object]]) -> None:
    page.blank()
    page.paragraph([("rank  state     step      exit  collective or first error", "bold")])
    for r in ranks[:RANKS]:
        said = r.get("collective") or r.get("first_error") or r.get("last_line") or ""
        step = r.get("step") if r.get("step") is not None else "-"
        code = r.get("exit") if r.get("exit") is not None else "-"
        head = f"{r.get('rank')!s:>4}  {r.get('state')!s:<8}  {step!s:<8}  {code!s:>4}  "
        page.paragraph([(str(said)[:160], "")], first=head, hang=len(head))
    if len(ranks) > RANKS:
        page.paragraph([(f"… and {len(ranks) - RANKS} more", "")], hang=2)


def _proofs(proofs: Sequence[Mapping[str, object]], folder: str, longest: int | None = LONGEST) -> list[str]:
    """A line each; with `longest`, equal messages of several ranks are one, and long ones are cut."""
    found: dict[str, tuple[str, list[int]]] = {}
    for p in proofs:
        place = _inside(str(p.get("file")), folder) + (f":{p['line']}" if p.get("line") else "")
        text, rank = " ".join(str(p.get("text")).split()), p.get("rank")
        same = f"{place} {text}" if longest is None else NUMBER.sub("#", text)
        shown = text if longest is None or len(text) <= longest else f"{text[:longest].rstrip()}…"
        others = found.setdefault(same, (f"{place}: {shown}", []))[1]
        if isinstance(rank, int) and rank not in others:
            others.append(rank)
    return [
        f"{line} (likewise on rank{'s' if len(ranks) > 2 else ''} {_ranges(ranks[1:])})"
        if len(ranks) > 1
        else line
        for line, ranks in found.values()
    ]


def _ranges(ranks: Sequence[object]) -> str:
    """`0-2, 5`; at most `RUNS` of them."""
    runs: list[list[int]] = []
    for rank in sorted({r for r in ranks if isinstance(r, int)}):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    return ", ".join(words[:RUNS]) + (", …" if len(words) > RUNS else "")


def _folder(inputs: Sequence[Mapping[str, object]]) -> str:
    """The folder that all inputs are in, where naming it once makes their names shorter."""
    names = [n for i in inputs if isinstance(n := i.get("name"), str)]
    if len(names) < 2 or not all(n.startswith("/") for n in names):
        return ""
    common = posixpath.commonpath(names)
    return common if common != "/" and common not in names else ""


def _inside(text: str, folder: str) -> str:
    return text.replace(f"{folder}/", "") if folder else text


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> list[Mapping[str, object]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, (list, tuple)) else []


def _texts(value: object) -> list[str]:
    return [str(v) for v in value] if isinstance(value, (list, tuple)) else []


def _snapshots(page: Page, report: Report) -> None:
    """What snapshots of CUDA memory show beside the cause, or without one."""
    shown = [r for r in report.results if r.code == MEMORY_SNAPSHOT and r.status is Status.INFO]
    for result in shown[:SNAPSHOTS]:
        page.blank()
        page.paragraph([("Memory: ", "bold"), (f"{result.subject.file}, {result.found}", "")], hang=2)
        for number, held in enumerate(result.evidence):
            page.labelled("" if number else "held", held.text)
