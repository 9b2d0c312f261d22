"""Every check has a machine on which it fires and one on which it passes, and does both."""

from __future__ import annotations

import pytest

from fixtures import cases
from fixtures.memory import facts_of
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Status

CASES = cases.load()
FIRING = {Status.FAIL, Status.WARN, Status.INFO}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: cases.Case) -> None:
    spec = registry().get(case.code)
    assert spec is not None, f"no check {case.code}"
    facts = facts_of(case.make(), (*spec.needs, *spec.uses), case.options, case.launch)
    results = run_checks([spec], facts, case.options)
    assert case.status in {r.status for r in results}, results
    if case.status is Status.PASS:
        assert {r.status for r in results} == {Status.PASS}, results
    hits = [r for r in results if r.status is case.status]
    for word in case.words:
        said = [f"{r.found} {r.expected} {r.subject} {r.fix.text if r.fix else ''}" for r in hits]
        assert any(word in s for s in said), (word, said)


@pytest.mark.parametrize("code", [c.code for c in registry().checks])
def test_has_bad_and_good(code: str) -> None:
    statuses = {c.status for c in CASES if c.code == code}
    assert statuses & FIRING, f"{code} has no bad machine"
    assert Status.PASS in statuses, f"{code} has no good machine"
