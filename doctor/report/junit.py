"""JUnit XML as Jenkins and GitLab read it: a suite per family of checks, a case per result."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree as ET

from fsdp_doctor.findings import Report, Result, Status
from fsdp_doctor.report.describe import subject_words
from fsdp_doctor.report.escape import lines, one_line

NOT_JUDGED = "not-judged"
_CHILD = {Status.FAIL: "failure", Status.ERROR: "error", Status.SKIP: "skipped"}


def render(report: Report) -> str:
    """The report as one XML document. With `strict` a warning is a failure, else it is a passed case."""
    root = ET.Element("testsuites", {"name": f"fsdp-doctor {one_line(report.command)}"})
    families: dict[str, list[Result]] = {}
    for result in report.results:
        families.setdefault(result.code[:3], []).append(result)
    for family in sorted(families):
        _suite(root, report, family, [_case(r, report) for r in families[family]])
    if report.unjudged:
        _suite(root, report, NOT_JUDGED, [_unjudged(u) for u in report.unjudged])
    suites = list(root)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(s.get(name, "0")) for s in suites)))
    root.set("time", f"{report.seconds:.3f}")
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _suite(root: ET.Element, report: Report, name: str, cases: list[ET.Element]) -> None:
    kinds = Counter(child.tag for case in cases for child in case)
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": f"fsdp-doctor.{name}",
            "tests": str(len(cases)),
            "failures": str(kinds["failure"]),
            "errors": str(kinds["error"]),
            "skipped": str(kinds["skipped"]),
            "time": f"{sum(float(c.get('time', '0')) for c in cases):.6f}",
            "timestamp": report.started[:19],
        },
    )
    seen: Counter[str] = Counter()
    for case in cases:
        title = case.get("name", "")
        seen[title] += 1
        if seen[title] > 1:
            case.set("name", f"{title} ({seen[title]})")
        suite.append(case)


def _unjudged(what: str) -> ET.Element:
    case = ET.Element(
        "testcase", {"classname": f"fsdp-doctor.{NOT_JUDGED}", "name": one_line(what), "time": "0"}
    )
    ET.SubElement(case, "error", {"message": one_line(what), "type": NOT_JUDGED})
    return case


def _case(result: Result, report: Report) -> ET.Element:
    subject = one_line(subject_words(result.subject))
    name = f"{result.code} {one_line(result.title)}" + (f" [{subject}]" if subject else "")
    case = ET.Element(
        "testcase",
        {
            "classname": f"fsdp-doctor.{result.code[:3]}",
            "name": name,
            "time": f"{max(result.seconds, 0):.6f}",
        },
    )
    kind = _CHILD.get(result.status)
    if result.status is Status.WARN and report.strict:
        kind = "failure"
    if result.suppressed is not None:
        ET.SubElement(case, "skipped", {"message": f"suppressed: {one_line(result.suppressed)}"})
    elif kind == "skipped":
        ET.SubElement(case, kind, {"message": one_line(result.found)})
    elif kind is not None:
        attributes = {"message": one_line(result.found), "type": result.status.value}
        ET.SubElement(case, kind, attributes).text = _body(result)
    elif result.status in (Status.WARN, Status.INFO):
        ET.SubElement(case, "system-out").text = f"{result.status.value}\n{_body(result)}"
    return case


def _body(result: Result) -> str:
    parts = [("found", result.found), ("expected", result.expected), ("why", result.why)]
    if result.fix:
        parts.append(("fix", result.fix.text))
    said = [f"{label}: {one_line(value)}" for label, value in parts if value]
    if result.fix and result.fix.command:
        said += [f"$ {line}" for line in lines(result.fix.command)]
    for evidence in result.evidence:
        said.append(f"evidence ({one_line(evidence.source)}):")
        said += lines(evidence.text)
    return "\n".join(said)
