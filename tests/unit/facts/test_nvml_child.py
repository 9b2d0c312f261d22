"""The NVML child against a library that answers, fails, hangs and crashes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.child_answers import nvml_answers
from fsdp_doctor.facts.children import nvml_child
from fsdp_doctor.facts.gpu import driver, gpus
from fsdp_doctor.facts.live import CHILDREN, binding
from fsdp_doctor.process import Outcome, run
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.gpu import Driver, Fabric, GpuProcess, Gpus, RemappedRows
from tests.support.nvml import fake_nvml

DEADLINE = 40.0
CHILD = str(CHILDREN / "nvml_child.py")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fake_nvml(tmp_path_factory.mktemp("nvml"))


def ask(
    env: Mapping[str, str], deadline: float = DEADLINE, *, arguments: tuple[str, ...] | None = None
) -> Outcome:
    given = binding() if arguments is None else arguments
    return run([sys.executable, "-I", CHILD, *given], deadline, env=env)


def answers(env: Mapping[str, str], deadline: float = DEADLINE) -> Mapping[str, Any]:
    fact = nvml_answers(ask(env, deadline))
    assert isinstance(fact, Known), fact
    return fact.value


def facts(nvml: Mapping[str, Any]) -> tuple[Gpus, Driver]:
    """What the providers make of answers on a machine that says nothing else."""
    machine = machines.laptop()
    machine.nvml = dict(nvml)
    found, told = gpus(source_of(machine)), driver(source_of(machine))
    assert isinstance(found, Known) and isinstance(told, Known)
    return found.value, told.value


def test_answers_become_facts(library: dict[str, str]) -> None:
    found, told = facts(answers(library))
    assert (told.nvml_version, told.cuda_version) == ("535.183.06", 12020)
    assert (found.count, len(found.devices)) == (2, 2)
    g = found.devices[1]
    assert (g.name, g.uuid, g.minor) == ("NVIDIA Fake 1", "GPU-00000000-0000-0000-0000-000000000001", 1)
    assert (g.memory_total, g.memory_reserved, g.memory_used, g.memory_used_v1) == (1000, 200, 100, 300)
    assert g.processes == (GpuProcess(41823, 5000), GpuProcess(41824, None))
    assert g.remapped == RemappedRows(1, 2, True, False)
    assert (g.temperature_shutdown, g.temperature_slowdown, g.temperature_memory_max) == (90, 89, None)
    assert g.ecc[("uncorrected", "aggregate")] == 11
    assert [(x.index, x.active) for x in g.nvlinks or ()] == [(0, True), (1, True), (2, False), (3, True)]
    assert (g.nvlinks or ())[3].errors == {"replay": 300, "recovery": 301, "crc_flit": 302, "crc_data": 303}
    assert (g.nvlink_count, g.nvlink_mbps, g.recovery_action) == (4, 26562, 1)
    assert g.fabric == Fabric(3, 0, 7, "00102030-4050-6070-8090-a0b0c0d0e0f0", 1, None)
    assert found.devices[0].p2p == {(1, 0): 0, (1, 1): 0, (1, 2): 5, (1, 3): 0, (1, 4): 0}
    assert g.common_ancestor == {0: 40}
    assert g.mig_current is False and g.lost is None


def test_functions_that_an_old_driver_lacks_are_named(library: dict[str, str]) -> None:
    found, _ = facts(answers(library))
    errors = found.devices[0].errors
    assert errors["nvmlDeviceGetMarginTemperature"] == "FunctionNotFound"
    assert errors["nvmlDeviceGetVbiosVersion"] == "UnicodeDecodeError"
    assert "nvmlDeviceGetName" not in errors


def test_a_binding_that_lacks_functions(library: dict[str, str], tmp_path: Path) -> None:
    """An older nvidia-ml-py: the same library, fewer functions and structures."""
    original = Path(binding()[1]).read_text()
    removed = (
        "nvmlDeviceGetRemappedRows",
        "c_nvmlGpuFabricInfo_v3_t",
        "nvmlMemory_v2",
        "NVML_NVLINK_MAX_LINKS",
    )
    old = tmp_path / "pynvml.py"
    old.write_text(f"{original}\nfor _name in {removed!r}:\n    globals().pop(_name, None)\n")
    fact = nvml_answers(ask(library, arguments=("--pynvml", str(old))))
    assert isinstance(fact, Known)
    found, _ = facts(fact.value)  # type: ignore[arg-type]
    g = found.devices[0]
    assert (g.remapped, g.errors["nvmlDeviceGetRemappedRows"]) == (None, "FunctionNotFound")
    assert (g.memory_used, g.memory_total) == (None, 1000)
    assert g.fabric is not None, "the next older structure serves"
    assert len(g.nvlinks or ()) == 4


@pytest.mark.parametrize(
    ("code", "name"),
    [(9, "DriverNotLoaded"), (18, "LibRmVersionMismatch"), (4, "NoPermission"), (777, "Code777")],
)
def test_a_start_that_fails(library: dict[str, str], code: int, name: str) -> None:
    assert answers({**library, "FAKE_NVML_INIT": str(code)}) == {"error": name}


def test_no_library(tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_bytes(b"no library")
    assert answers({"LD_LIBRARY_PATH": str(tmp_path)}) == {"error": "LibraryNotFound"}


def test_no_binding(tmp_path: Path) -> None:
    fact = nvml_answers(ask({}, arguments=("--pynvml", str(tmp_path / "none.py"))))
    assert (
        isinstance(fact, Unknown) and "binding" in fact.reason and fact.enable == "pip install nvidia-ml-py"
    )


def test_the_tool_itself_is_found_without_the_environment(library: dict[str, str], tmp_path: Path) -> None:
    """Isolated, and with a folder of the user's in the way, the child takes its own modules."""
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    assert len(answers({**library, "PYTHONPATH": str(tmp_path)})["devices"]) == 2


def test_a_lost_gpu(library: dict[str, str]) -> None:
    found, _ = facts(answers({**library, "FAKE_NVML_FAIL": "nvmlDeviceGetHandleByIndex_v2:0:15"}))
    assert [g.lost for g in found.devices] == ["GpuIsLost", None]
    assert found.devices[1].p2p == {}, "the pair cannot be asked"


def test_a_gpu_that_is_lost_between_two_answers(library: dict[str, str]) -> None:
    found, _ = facts(answers({**library, "FAKE_NVML_FAIL": "nvmlDeviceGetPowerUsage:1:15"}))
    assert [g.lost for g in found.devices] == [None, "GpuIsLost"]
    assert found.devices[1].name == "NVIDIA Fake 1"


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_call_that_hangs_costs_its_gpu_alone(library: dict[str, str], function: str) -> None:
    outcome = ask({**library, "FAKE_NVML_COUNT": "8", "FAKE_NVML_HANG": f"{function}:3"})
    assert outcome.ok, "the child ends by itself"
    fact = nvml_answers(outcome)
    assert isinstance(fact, Known)
    found, _ = facts(fact.value)  # type: ignore[arg-type]
    assert [g.index for g in found.devices if g.lost] == [3]
    assert found.devices[3].lost == "NoAnswer"
    for g in found.present:
        assert len(g.nvlinks or ()) == 4 and len(g.p2p) >= 30
    named = {f for f, e in found.devices[3].errors.items() if e == "NoAnswer"}
    assert named == {function.removesuffix("_v2")}


def test_too_little_time_is_not_a_fault_of_a_gpu(library: dict[str, str]) -> None:
    found, _ = facts(answers({**library, "FAKE_NVML_HANG": "nvmlDeviceGetPowerUsage:1"}, 3.0))
    assert [g.lost for g in found.devices] == [None, None]
    assert found.devices[1].errors["nvmlDeviceGetPowerUsage"] == "NotInTime"
    assert found.devices[0].power_usage == 70000


def test_a_start_that_takes_too_long(library: dict[str, str]) -> None:
    fact = nvml_answers(ask({**library, "FAKE_NVML_HANG": "nvmlInitWithFlags:-1"}, 2.0))
    assert isinstance(fact, Unknown) and "in time" in fact.reason and "--deadline" in fact.enable


def test_a_start_that_hangs() -> None:
    waited = Outcome(None, b'[null,"nvmlInit"]\n', timed_out=True, seconds=45.0)
    stuck = Outcome(
        None,
        b'[null,"nvmlInit"]\n',
        timed_out=True,
        abandoned=True,
        seconds=9.0,
        state="D",
        wait_channel="rm_ioctl",
    )
    for outcome, words in ((waited, "no answer in 45.0 s"), (stuck, "waiting in rm_ioctl")):
        fact = nvml_answers(outcome)
        assert isinstance(fact, Known) and fact.value["error"] == "NoAnswer"
        assert words in str(fact.value["reason"])


def test_a_crash_keeps_what_was_answered(library: dict[str, str]) -> None:
    env = {**library, "FAKE_NVML_COUNT": "1", "FAKE_NVML_CRASH": "nvmlDeviceGetPowerUsage:0"}
    found, _ = facts(answers(env))
    g = found.devices[0]
    assert (g.name, g.lost, g.errors["nvmlDeviceGetPowerUsage"]) == ("NVIDIA Fake 0", None, "Crashed")
    assert answers({**library, "FAKE_NVML_CRASH": "nvmlInitWithFlags:-1"}) == {
        "error": "Crashed",
        "reason": "nvmlInit: ended by SIGABRT",
    }


def test_output_of_anything_else_is_no_answer() -> None:
    noise = b'\xff\n[1]\n[null,2]\n{"a":1}\n[null,"nvmlInit",null]\n[null,"nvmlDeviceGetCount",3]\n[0,"f",1]\n[1,"nv'
    fact = nvml_answers(Outcome(-9, noise))
    assert isinstance(fact, Known)
    assert fact.value["devices"] == [
        {"nvmlDeviceGetHandleByIndex": {"error": "Crashed"}},
        {"nvmlDeviceGetHandleByIndex": {"error": "Crashed"}},
        {"nvmlDeviceGetHandleByIndex": {"error": "Crashed"}},
    ]
    assert isinstance(nvml_answers(Outcome(1, b"")), Unknown)
    assert isinstance(nvml_answers(Outcome(None, error="no such file")), Unknown)


def test_waiting_ends_without_progress(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Stuck:
        index, asking = 4, "nvmlDeviceGetName"

        def is_alive(self) -> bool:
            return True

        def join(self, seconds: float) -> None:
            time.sleep(seconds)

    monkeypatch.setattr(nvml_child, "HUNG_ALL", 0.1)
    nvml_child.wait({4: Stuck()}, nvml_child.Lines())  # type: ignore[dict-item]
    assert json.loads(capfd.readouterr().out) == [4, "nvmlDeviceGetName", {"error": "NoAnswer"}]
