"""A script that is not there: a fault on this machine, unknown beside a recording of another."""

from __future__ import annotations

import pytest

from fsdp_doctor.checks.env.launch_command import script_unreadable
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Status
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Identity


def absent(script: str = "trian.py") -> Known[Launch]:
    error = f"/work/{script}: no such file"
    return Known(
        Launch("torchrun", ("torchrun", script), script=script, script_exists=False, script_error=error)
    )


@pytest.mark.parametrize(("recorded", "status"), [(False, Status.FAIL), (True, Status.INFO)])
def test_absent_script(recorded: bool, status: Status) -> None:
    facts = Facts({Launch: absent(), Identity: Known(Identity(None, None, None, recorded=recorded))})
    (finding,) = run_checks([script_unreadable], facts, Options())
    assert finding.status is status
    assert "trian.py" in finding.found


def test_absent_script_of_an_unknown_machine() -> None:
    (finding,) = run_checks([script_unreadable], Facts({Launch: absent()}), Options())
    assert finding.status is Status.FAIL
