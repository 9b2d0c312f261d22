"""JSON of schema fsdp-doctor/1; `fsdp-doctor-1.schema.json` beside this module describes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from importlib import resources

from fsdp_doctor.findings import Fix, Report, Result, Subject
from fsdp_doctor.report.escape import unpaired

SCHEMA = "fsdp-doctor/1"
SCHEMA_FILE = "fsdp-doctor-1.schema.json"


def render(report: Report) -> str:
    """The report as JSON in ASCII, so that it survives every terminal and pipe."""
    return json.dumps(plain(report_object(report)), indent=1, allow_nan=False) + "\n"


def report_object(report: Report) -> dict[str, object]:
    """The report as a dictionary in the schema's key order."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "verdict": report.verdict,
        "tool": dict(report.tool),
        "started": report.started,
        "seconds": round(report.seconds, 3),
        "unjudged": list(report.unjudged),
        "results": [_result(r) for r in report.results],
        "data": dict(report.data),
    }


def _result(result: Result) -> dict[str, object]:
    return {
        "code": result.code,
        "title": result.title,
        "row": result.row,
        "status": result.status,
        "subject": _subject(result.subject),
        "found": result.found,
        "expected": result.expected,
        "why": result.why,
        "fix": _fix(result.fix),
        "confidence": result.confidence,
        "evidence": [{"source": e.source, "text": e.text} for e in result.evidence],
        "seconds": round(result.seconds, 6),
        "suppressed": result.suppressed,
    }


def _subject(subject: Subject) -> dict[str, object]:
    items = ((f.name, getattr(subject, f.name)) for f in dataclasses.fields(subject))
    return {name: value for name, value in items if value is not None}


def _fix(fix: Fix | None) -> dict[str, object] | None:
    if fix is None:
        return None
    return {"text": fix.text, "command": fix.command, "risk": fix.risk, "owner": fix.owner}


def plain(value: object) -> object:
    """JSON values only: enumerations by value, tuples and sets as lists, NaN and infinity as null."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return unpaired(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {unpaired(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(v) for v in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return unpaired(str(value))


def schema() -> str:
    """The text of the JSON Schema that is shipped with this package."""
    return resources.files("fsdp_doctor.report").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
