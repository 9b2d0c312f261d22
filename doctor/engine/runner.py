"""Run checks over facts: skips for unknown facts, errors for broken checks, one pass for silence."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import BrokenPlugin
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.findings import SILENT_PASS, Evidence, Finding, Fix, Result, Row, Status, Subject
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.scheduler import Identity

PLUGIN_CODE = "ENV000"
"""The code of results about plug-ins themselves; no check has it."""


def run_checks(checks: Iterable[CheckSpec], facts: Facts, options: Options) -> tuple[Result, ...]:
    """Judge the facts. Never raises: a check that does becomes an `error` result."""
    identity = facts.find(Identity)
    return tuple(r for c in checks for r in _run(c, facts, options, identity))


def _run(check: CheckSpec, facts: Facts, options: Options, identity: Identity | None) -> Iterator[Result]:
    began = time.perf_counter()
    missing = facts.unknown(check.needs)
    if missing is not None:
        findings = [Finding(Status.SKIP, missing.reason, missing.enable)]
    else:
        try:
            findings = [_whole(f) for f in check.judge(facts, options)] or [Finding(Status.PASS, SILENT_PASS)]
        except (
            Exception,
            SystemExit,
        ) as error:  # it is this check's error alone
            trace = traceback.format_exc(limit=-6)
            findings = [
                Finding(
                    Status.ERROR,
                    f"the check failed: {type(error).__name__}: {error}",
                    "a result",
                    evidence=(Evidence("traceback", trace),),
                )
            ]
    seconds = (time.perf_counter() - began) / len(findings)
    for finding in findings:
        yield _result(check, finding, identity, seconds)


def _whole(finding: object) -> Finding:
    """A finding that every renderer can show. Raises `TypeError`: a check of a plug-in may yield anything."""
    if not isinstance(finding, Finding):
        raise TypeError(f"it yielded a {type(finding).__name__}, which is no finding")
    texts = (finding.found, finding.expected, finding.why)
    parts = ((finding.status, Status), (finding.subject, Subject), (finding.fix, (Fix, type(None))))
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(v, kind) for v, kind in parts):
        raise TypeError("it yielded a finding with parts of the wrong type")
    return finding


def _result(check: CheckSpec, finding: Finding, identity: Identity | None, seconds: float) -> Result:
    subject = finding.subject
    if identity is not None:
        many = identity.world_size is not None and identity.world_size > 1
        subject = replace(
            subject,
            host=subject.host if subject.host is not None else identity.host,
            rank=subject.rank if subject.rank is not None or not many else identity.rank,
        )
    bad = finding.status in (Status.WARN, Status.FAIL)
    return Result(
        code=check.code,
        title=check.title,
        row=finding.row or check.row,
        status=finding.status,
        subject=subject,
        found=finding.found,
        expected=finding.expected,
        why=finding.why or (check.documentation.why if bad else ""),
        fix=finding.fix,
        confidence=finding.confidence,
        evidence=finding.evidence,
        seconds=seconds,
    )


def broken_plugin_results(broken: Iterable[BrokenPlugin]) -> tuple[Result, ...]:
    """A plug-in that cannot be used is an error, so that its silence is no pass."""
    return tuple(
        Result(
            PLUGIN_CODE,
            "Plug-in cannot be used",
            Row.START,
            Status.ERROR,
            Subject(),
            f"{b.package}: {b.reason}",
            "an importable module whose checks have codes of their own",
        )
        for b in broken
    )
