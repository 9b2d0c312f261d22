"""Words for the parts of a result that every renderer shows: its subject, counts and exit status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fsdp_doctor.findings import Report, Result, Status, Subject, Verdict

SHOWN_HOSTS = 4
EXIT_MEANING = {
    Verdict.PASS: "no check failed",
    Verdict.WARN: "no check failed",
    Verdict.FAIL: "at least one check failed",
    Verdict.INCOMPLETE: "something could not be judged",
}
ORDER = (Status.FAIL, Status.ERROR, Status.WARN, Status.INFO, Status.PASS, Status.SKIP)


def numbers(values: Sequence[int]) -> str:
    """Integers with runs folded: 0, 1, 2, 3, 9 -> "0-3, 9"."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{a}-{b}" if b > a + 1 else f"{a}, {b}" if b > a else f"{a}" for a, b in runs)


def codes_words(codes: Iterable[str]) -> str:
    """Codes with runs folded: GPU001, GPU002, GPU003, NET001 -> "GPU001-GPU003, NET001"."""
    families: dict[str, list[int]] = {}
    for code in sorted(codes):
        families.setdefault(code[:3], []).append(int(code[3:]))
    named = (
        "-".join(f"{family}{int(end):03d}" for end in run.split("-"))
        for family, members in families.items()
        for run in numbers(members).split(", ")
    )
    return ", ".join(named)


def _counted(name: str, value: int | tuple[int, ...]) -> str:
    if isinstance(value, int):
        return f"{name} {value}"
    return f"{name}{'s' if len(value) > 1 else ''} {numbers(value)}"


def _hosts(host: str) -> str:
    names = [n for n in host.split(",") if n]
    if len(names) <= 1:
        return f"host {host}"
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    return f"hosts {', '.join(names[:SHOWN_HOSTS])}{more}"


def subject_words(subject: Subject) -> str:
    """The subject on one line, such as "host node-a; rank 3; GPUs 0-7"; empty where nothing is set."""
    return "; ".join(_subject_parts(subject))


def _subject_parts(subject: Subject) -> Iterator[str]:
    if subject.host:
        yield _hosts(subject.host)
    if subject.rank is not None:
        yield _counted("rank", subject.rank)
    if subject.gpu is not None:
        yield _counted("GPU", subject.gpu)
    if subject.device:
        yield f"device {subject.device}"
    if subject.variable:
        yield f"variable {subject.variable}"
    if subject.path:
        yield f"path {subject.path}"
    if subject.file:
        yield f"{subject.file}:{subject.line}" if subject.line is not None else subject.file
    if subject.tensor:
        yield f"tensor {subject.tensor}"


def counted(results: Iterable[Result]) -> dict[Status, int]:
    """How many results have each status; suppressed ones are left out."""
    count = dict.fromkeys(Status, 0)
    for result in results:
        if result.suppressed is None:
            count[result.status] += 1
    return count


def counts_words(report: Report) -> str:
    """Such as "2 failed, 1 warning, 31 passed, 12 skipped"."""
    count = counted(report.results)
    suppressed = sum(r.suppressed is not None for r in report.results)
    parts = [
        _plural(count[Status.FAIL], "failed", "failed"),
        _plural(count[Status.ERROR], "error", "errors"),
        _plural(len(report.unjudged), "not judged", "not judged"),
        _plural(count[Status.WARN], "warning", "warnings"),
        _plural(count[Status.INFO], "note", "notes"),
        _plural(count[Status.PASS], "passed", "passed"),
        _plural(count[Status.SKIP], "skipped", "skipped"),
        _plural(suppressed, "suppressed", "suppressed"),
    ]
    return ", ".join(p for p in parts if p) or "nothing to judge"


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}" if count else ""


def exit_words(report: Report) -> str:
    """Such as "exit 1: at least one check failed"."""
    meaning = EXIT_MEANING[report.verdict]
    failed = any(r.status is Status.FAIL and r.suppressed is None for r in report.results)
    if report.verdict is Verdict.FAIL and not failed:
        meaning = "--strict counts warnings as failures"
    return f"exit {report.exit_code}: {meaning}"
