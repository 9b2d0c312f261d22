"""Devices in another order: each rank gets the next one, and what only that shows is reported."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fsdp_doctor.cli.probe_rank import next_gpus
from fsdp_doctor.probe.launch import Request
from fsdp_doctor.probe.member import About
from fsdp_doctor.probe.planning import NCCL, plan
from fsdp_doctor.probe.session import turned

DEVICE = Path(__file__).parents[3] / "doctor" / "probe" / "worker" / "device.py"
UUIDS = [f"0000000{i}-aaaa-bbbb-cccc-000000000000" for i in range(4)]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(None, (1, 2, 3, 0)), ((4, 5, 6, 7), (5, 6, 7, 4)), (("GPU-a", "GPU-b"), ("GPU-b", "GPU-a"))],
)
def test_each_rank_gets_the_next_device(devices: Any, expected: tuple[object, ...]) -> None:
    ranks = len(expected)
    asked = Request(plan(NCCL, ranks), ranks, devices=devices)
    made = turned(asked)
    assert made.devices == expected and made.rotated and not asked.rotated
    assert made.plan.pair_bytes == () and made.plan.copy_bytes == ()
    assert set(made.plan.sizes) <= set(asked.plan.sizes) and made.plan.ops == asked.plan.ops
    assert made.plan.deadline_seconds < asked.plan.deadline_seconds


def rank(number: int, host: str, local: int, gpus: int) -> About:
    return About(number, host, local, gpus)


@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        ([rank(i, "a", i, 4) for i in range(4)], [1, 2, 3, 0]),
        ([rank(0, "a", 0, 2), rank(1, "a", 1, 2), rank(2, "b", 0, 2), rank(3, "b", 1, 2)], [1, 0]),
        ([rank(0, "a", 0, 8), rank(1, "b", 0, 8)], None),
        ([rank(0, "a", 0, 1), rank(1, "a", 1, 1)], None),
        ([rank(0, "a", 0, 2), rank(1, "a", 1, 2), rank(2, "b", 0, 2)], None),
        ([rank(0, "a", 0, 2), rank(1, "a", 0, 2)], None),
    ],
    ids=[
        "one host",
        "two hosts",
        "a GPU a host",
        "each sees its own alone",
        "uneven hosts",
        "local ranks twice",
    ],
)
def test_ranks_of_a_launcher_take_the_next_gpu_where_each_sees_all(
    ranks: list[About], order: list[int] | None
) -> None:
    assert next_gpus({r.rank: r for r in ranks}) == order


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker's choice of a device, with a torch that sees four GPUs."""
    torch: Any = types.ModuleType("torch")
    torch.device = lambda kind, index=None: (kind, index)
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 4,
        set_device=lambda index: None,
        get_device_properties=lambda index: types.SimpleNamespace(uuid=UUIDS[index]),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    spec = importlib.util.spec_from_file_location("worker_device", DEVICE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda local, devices: module.choose("nccl", local, devices, 1.0).index


@pytest.mark.parametrize("devices", [None, [1, 2, 3, 0], [f"GPU-{u}" for u in UUIDS[1:] + UUIDS[:1]]])
def test_the_worker_takes_the_device_of_its_place(choose: Any, devices: list[object] | None) -> None:
    turn = 0 if devices is None else 1
    assert [choose(local, devices) for local in range(4)] == [(local + turn) % 4 for local in range(4)]


@pytest.mark.parametrize("devices", [[9], ["GPU-none"], [-1]])
def test_a_device_that_is_not_there_is_said(choose: Any, devices: list[object]) -> None:
    with pytest.raises(RuntimeError, match="GPU"):
        choose(0, devices)
