"""`stack` and `torch` over made machines and mangled answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import machines
from fixtures.machines import SITE, Machine
from fixtures.memory import source_of
from fsdp_doctor.facts.stack import stack, torch
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.stack import Stack, Torch

SYSTEM_NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"


def known_stack(machine: Machine) -> Stack:
    fact = stack(source_of(machine))
    assert isinstance(fact, Known), fact
    return fact.value


def torch_of(machine: Machine) -> Torch | Unknown:
    fact = torch(source_of(machine))
    return fact.value if isinstance(fact, Known) else fact


def test_h100() -> None:
    s = known_stack(machines.h100())
    assert (s.python, s.executable) == ("3.12.3", "/opt/venv/bin/python")
    assert (s.platform, s.libc) == ("linux-x86_64", ("glibc", "2.39"))
    assert (s.dists["torch"], s.dists["nvidia-nccl-cu13"]) == ("2.13.0", "2.29.7")
    assert s.requires["torch"][0] == "nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'"
    assert s.dlopen["libibverbs.so.1"] == "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0"
    assert "libnccl-net.so" in s.dlopen and s.dlopen["libnccl-net.so"] is None
    assert (s.torch_error, s.system_nccl, s.dlopen_errors) == (None, (), {})
    assert torch_of(machines.h100()) == Torch(
        version="2.13.0+cu130",
        cuda="13.0",
        hip=None,
        nccl="2.29.7",
        nccl_runtime="2.29.7",
        arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
        cuda_available=True,
        device_count=8,
        cuda_error=None,
        path=f"{SITE}/torch",
        distributed_available=True,
        nccl_available=True,
        libraries=tuple(machines.stack()["libraries"]),
    )


def test_cpu_wheel() -> None:
    t = torch_of(machines.laptop())
    assert isinstance(t, Torch)
    assert (t.version, t.cuda, t.nccl, t.nccl_runtime, t.arch_list) == ("2.13.0+cpu", None, None, None, ())
    assert (t.cuda_available, t.device_count, t.nccl_available) == (False, 0, False)


def test_no_torch() -> None:
    machine = machines.h100()
    machine.stack["torch"] = None
    t = torch_of(machine)
    assert isinstance(t, Unknown)
    assert (t.reason, t.absent) == ("torch is not installed in /opt/venv/bin/python", True)
    assert known_stack(machine).torch_error is None


def test_an_import_that_failed() -> None:
    machine = machines.h100()
    text = "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    machine.stack["torch"] = {"error": text}
    t = torch_of(machine)
    assert isinstance(t, Unknown) and not t.absent
    assert t.reason == f"import torch failed: {text}" and "/opt/venv/bin/python -c 'import torch'" in t.enable
    assert known_stack(machine).torch_error == text


def test_an_interpreter_that_could_not_be_started() -> None:
    machine = machines.h100()
    machine.stack = {"error": "/opt/none/python cannot be run: No such file or directory"}
    for fact in (stack(source_of(machine)), torch(source_of(machine))):
        assert isinstance(fact, Unknown)
        assert fact.reason == "/opt/none/python cannot be run: No such file or directory"


def test_versions_as_lists() -> None:
    machine = machines.h100()
    machine.stack["torch"]["nccl"] = [2, 27, 5]
    machine.stack["nccl_runtime"] = [2, "x"]
    t = torch_of(machine)
    assert isinstance(t, Torch) and (t.nccl, t.nccl_runtime) == ("2.27.5", None)


class TestSystemNccl:
    def test_default_folder(self) -> None:
        machine = machines.h100()
        machine.put(SYSTEM_NCCL, "")
        assert known_stack(machine).system_nccl == (SYSTEM_NCCL,)

    def test_order_of_the_loader(self) -> None:
        machine = machines.h100()
        for path in ("/opt/nccl/lib/libnccl.so.2", "/opt/pre/libnccl.so.2.19.3", SYSTEM_NCCL):
            machine.put(path, "")
        machine.env |= {
            "LD_LIBRARY_PATH": "/opt/none:/opt/nccl/lib/",
            "LD_PRELOAD": "/opt/pre/libnccl.so.2.19.3",
        }
        assert known_stack(machine).system_nccl == (
            "/opt/pre/libnccl.so.2.19.3",
            "/opt/nccl/lib/libnccl.so.2",
            SYSTEM_NCCL,
        )

    def test_one_file_under_several_names_is_one(self) -> None:
        machine = machines.h100()
        machine.put("usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3", "")
        machine.links["usr/lib/x86_64-linux-gnu/libnccl.so.2"] = "libnccl.so.2.28.3"
        machine.stack["dlopen"]["libnccl.so.2"] = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3"
        assert known_stack(machine).system_nccl == ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3",)

    def test_mapped_from_elsewhere(self) -> None:
        machine = machines.h100()
        machine.stack["libraries"] = ["/opt/hpcx/nccl/lib/libnccl.so.2.20.5"]
        assert known_stack(machine).system_nccl == ("/opt/hpcx/nccl/lib/libnccl.so.2.20.5",)

    @pytest.mark.parametrize("path", [f"{SITE}/nvidia/nccl/lib/libnccl.so.2", "/opt/venv/lib/libnccl.so.2"])
    def test_files_of_the_environment_are_not_meant(self, path: str) -> None:
        machine = machines.h100()
        machine.put(path, "")
        machine.env["LD_LIBRARY_PATH"] = path.rsplit("/", 1)[0]
        assert known_stack(machine).system_nccl == ()


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda x: (
        st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["error", "version", "torch", "a"]), x)
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(machines.stack())), ODD, max_size=6),
    st.dictionaries(st.sampled_from(sorted(machines.stack()["torch"])), ODD, max_size=6),
)
def test_no_answer_whatever_raises(changes: dict[str, Any], of_torch: dict[str, Any]) -> None:
    machine = machines.laptop()
    machine.stack["torch"] |= of_torch
    machine.stack |= changes
    for fact in (stack(source_of(machine)), torch(source_of(machine))):
        assert isinstance(fact, Known) or fact.reason
