"""The example of CONTRIBUTING.md works as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from fixtures import cases
from fixtures.cases import host
from fixtures.memory import facts_of
from fsdp_doctor.engine.registry import registry, specs_of
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Status

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")


def test_the_check_fires_and_passes_on_its_machines() -> None:
    code, machines = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    module = ModuleType("swap_in_use")
    exec(compile(code, "checks/host/swap_in_use.py", "exec"), module.__dict__)
    (spec,) = specs_of(module)
    names: dict[str, Any] = dict(host.__dict__)
    known = len(cases.CASES)
    try:
        exec(compile(machines, "fixtures/cases/host.py", "exec"), names)
        added = cases.CASES[known:]
    finally:
        del cases.CASES[known:]
    assert registry().get(spec.code) is None
    assert not [c.make.__name__ for c in added if hasattr(host, c.make.__name__)]
    assert [c.code for c in added] == [spec.code] * 2
    for case in added:
        (result,) = run_checks([spec], facts_of(case.make(), spec.needs), case.options)
        assert result.status is case.status, result
        assert all(word in result.found for word in case.words)
    assert [c.status for c in added] == [Status.WARN, Status.PASS]
