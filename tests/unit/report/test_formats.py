"""JSON follows its schema; JUnit has the structure that Jenkins and GitLab read."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from fsdp_doctor.findings import Report, Status, Subject
from fsdp_doctor.report import json as as_json
from fsdp_doctor.report import junit
from tests.unit.report.sample import STARTED, TOOL, empty, everything, hostile, result

SCHEMA = json.loads(as_json.schema())
ALLOWED = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}


@pytest.mark.parametrize("report", [everything(), hostile(), empty(), replace(empty(), unjudged=("x",))])
def test_schema(report: Report) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(as_json.render(report)), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("key", "value"),
    [("verdict", "fine"), ("schema", "fsdp-doctor/2"), ("data", []), ("results", [{}]), ("started", "now")],
)
def test_schema_refuses(key: str, value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(as_json.plain(as_json.report_object(empty())) | {key: value}, SCHEMA)  # type: ignore[operator]


def test_json_values() -> None:
    one = result("GPU001", "t", Status.FAIL, "f", subject=Subject(gpu=(0, 3), rank=7))
    report = Report("check", (one,), TOOL, STARTED, 0.0, {"nan": float("nan"), "set": {2, 1}, 3: Status.FAIL})  # type: ignore[dict-item]
    told = json.loads(as_json.render(report))
    assert told["results"][0]["subject"] == {"gpu": [0, 3], "rank": 7}
    assert told["results"][0]["fix"] is None
    assert told["data"] == {"nan": None, "set": [1, 2], "3": "fail"}
    assert list(told) == [
        "schema", "command", "verdict", "tool", "started", "seconds", "unjudged", "results", "data",
    ]  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("report", [everything(), hostile(), empty()])
def test_junit_structure(report: Report, strict: bool) -> None:
    root = ET.fromstring(junit.render(replace(report, strict=strict)))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ALLOWED[element.tag], element.tag
    for suite in root:
        cases = list(suite)
        assert {c.tag for c in cases} == {"testcase"}
        names = [(c.get("classname"), c.get("name")) for c in cases]
        assert len(set(names)) == len(names) == int(suite.get("tests", ""))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}"))
        assert all(len(c) <= 1 for c in cases)
    assert int(root.get("tests", "")) == len(report.results) + len(report.unjudged)
    for attribute in ("failures", "errors", "skipped"):
        assert int(root.get(attribute, "")) == sum(int(s.get(attribute, "")) for s in root)


def test_junit_failures_follow_the_verdict() -> None:
    root = ET.fromstring(junit.render(everything()))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("1", "2", "3")
