"""Skips for unknown facts, errors for broken checks, a pass for silence, and the verdict of it all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import BrokenPlugin
from fsdp_doctor.engine.runner import broken_plugin_results, run_checks
from fsdp_doctor.engine.suppress import Suppression, suppress
from fsdp_doctor.findings import (
    Confidence,
    Finding,
    Fix,
    Report,
    Result,
    Row,
    Status,
    Subject,
    Verdict,
    fail,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts, Known, MissingFact, Unknown
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.scheduler import Identity
from tests.unit.engine.checks import spec

HOST = Facts({Host: Known(Host("a"))})


def report(*results: Result, strict: bool = False, unjudged: tuple[str, ...] = ()) -> Report:
    return Report("check", results, {}, "", 0.0, {}, unjudged, strict)


def test_unknown_fact_is_a_skip_with_its_reason() -> None:
    called = []
    facts = Facts({Host: Unknown("no /proc here", "mount it")})
    (result,) = run_checks([spec("ENV001", lambda f: called.append(f) or ())], facts, Options())
    assert (result.status, result.found, result.expected) == (Status.SKIP, "no /proc here", "mount it")
    assert not called


def test_silence_is_one_pass() -> None:
    (result,) = run_checks([spec("ENV001")], HOST, Options())
    assert result.status is Status.PASS
    assert result.why == ""


@pytest.mark.parametrize(
    "yielded",
    ["text", None, Finding(Status.FAIL, 5, ""), Finding("fail", "x", ""), fail("x", "y", fix="z")],  # type: ignore[arg-type]
)
def test_what_is_no_finding_is_an_error_of_its_check_alone(yielded: object) -> None:
    results = run_checks([spec("ENV001", lambda f: [yielded]), spec("ENV002")], HOST, Options())
    assert [r.status for r in results] == [Status.ERROR, Status.PASS]
    assert "it yielded a" in results[0].found


def test_a_check_that_exits_is_an_error_result() -> None:
    def leaves(facts: Facts) -> Iterator[Finding]:
        raise SystemExit(0)
        yield

    results = run_checks([spec("ENV001", leaves), spec("ENV002")], HOST, Options())
    assert [r.status for r in results] == [Status.ERROR, Status.PASS]


def test_exception_is_an_error_result_and_the_others_run() -> None:
    def broken(facts: Facts) -> Iterator[Finding]:
        yield fail("half", "whole")
        raise ZeroDivisionError("oops")

    results = run_checks([spec("ENV001", broken), spec("ENV002")], HOST, Options())
    assert [r.status for r in results] == [Status.ERROR, Status.PASS]
    assert "ZeroDivisionError: oops" in results[0].found
    assert "broken" in results[0].evidence[0].text


def test_undeclared_fact_is_an_error() -> None:
    (result,) = run_checks([spec("ENV001", lambda f: [ok(str(f[Identity]))])], HOST, Options())
    assert result.status is Status.ERROR
    with pytest.raises(MissingFact):
        _ = HOST[Identity]


def test_finding_takes_row_why_and_title_from_the_check() -> None:
    findings = [
        fail("x", "y", fix=Fix("do"), confidence=Confidence.LOW),
        warn("x", "y", row=Row.SLOW, why="z"),
    ]
    first, second = run_checks([spec("ENV001", lambda f: findings)], HOST, Options())
    assert (first.title, first.row, first.why) == ("Something is wrong", Row.START, "it matters to training.")
    assert (first.fix, first.confidence) == (Fix("do"), Confidence.LOW)
    assert (second.row, second.why) == (Row.SLOW, "z")


@pytest.mark.parametrize(("world", "rank"), [(1, None), (None, None), (4, 2)])
def test_host_and_rank_come_from_the_identity(world: int | None, rank: int | None) -> None:
    facts = Facts({Host: Known(Host("a")), Identity: Known(Identity("node-b", 2, world))})
    (result,) = run_checks([spec("ENV001")], facts, Options())
    assert result.subject == Subject(host="node-b", rank=rank)


@pytest.mark.parametrize(
    ("statuses", "strict", "unjudged", "verdict", "code"),
    [
        ("pass", False, (), Verdict.PASS, 0),
        ("", False, (), Verdict.PASS, 0),
        ("pass skip info", False, (), Verdict.PASS, 0),
        ("pass warn skip", False, (), Verdict.WARN, 0),
        ("pass warn", True, (), Verdict.FAIL, 1),
        ("pass info skip", True, (), Verdict.PASS, 0),
        ("warn error", False, (), Verdict.INCOMPLETE, 3),
        ("warn error", True, (), Verdict.FAIL, 1),
        ("fail error", False, ("x",), Verdict.FAIL, 1),
        ("pass", False, ("--ckpt /x",), Verdict.INCOMPLETE, 3),
    ],
)
def test_verdict(statuses: str, strict: bool, unjudged: tuple[str, ...], verdict: Verdict, code: int) -> None:
    results = [Result("ENV001", "t", None, Status(s), Subject(), "x") for s in statuses.split()]
    made = report(*results, strict=strict, unjudged=unjudged)
    assert (made.verdict, made.exit_code) == (verdict, code)


def test_suppression_keeps_the_result_and_does_not_count_it() -> None:
    results = run_checks([spec("ENV001", lambda f: [fail("x", "y")])], HOST, Options())
    marked = suppress(results, [Suppression("ENV", "known")], date(2026, 1, 1))
    assert marked[0].status is Status.FAIL
    assert marked[0].suppressed == "known"
    assert report(*marked).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("rule", "covers"),
    [
        (Suppression("ENV001", "r"), True),
        (Suppression("E", "r"), True),
        (Suppression("GPU", "r"), False),
        (Suppression("ENV", "r", host="a"), True),
        (Suppression("ENV", "r", host="b"), False),
        (Suppression("ENV", "r", until=date(2026, 1, 1)), True),
        (Suppression("ENV", "r", until=date(2025, 12, 31)), False),
    ],
)
def test_what_a_suppression_covers(rule: Suppression, covers: bool) -> None:
    result = Result("ENV001", "t", None, Status.WARN, Subject(host="a"), "x")
    assert rule.covers(result, date(2026, 1, 1)) is covers


def test_error_and_skip_cannot_be_suppressed() -> None:
    for status in (Status.ERROR, Status.SKIP, Status.PASS):
        result = Result("ENV001", "t", None, status, Subject(), "x")
        assert not Suppression("ENV001", "r").covers(result, date(2026, 1, 1))


def test_broken_plugin_is_an_error() -> None:
    (result,) = broken_plugin_results([BrokenPlugin("acme", "ImportError: no")])
    assert result.status is Status.ERROR
    assert "acme: ImportError: no" in result.found


def test_skip_carries_what_would_enable_it() -> None:
    assert skip("no root", enable="run as root").expected == "run as root"
