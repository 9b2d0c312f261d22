"""`ckpt estimate` as it is called."""

from __future__ import annotations

import pytest

from fixtures.checkpoints.saved import checkpoint, index
from fsdp_doctor.ckpt.estimate import Job, costs, of_checkpoint, of_count
from fsdp_doctor.subjects.checkpoint_cost import Way
from tests.unit.cli.conftest import Doctor

pytestmark = pytest.mark.timeout(60)
GIB = 1 << 30
ROOMY = ("--host-memory", "1TiB", "--gpu-memory", "80")


def test_seven_billion(doctor: Doctor) -> None:
    done = doctor("ckpt", "estimate", "--params", "7B", "--world-size", "16", *ROOMY, "--format", "json")
    data = done.json["data"]
    assert data["parameter_bytes"] == 28 * 10**9 and data["optimizer_bytes"] == 56 * 10**9
    assert data["gpu_held_bytes"] == (2 * 28 + 56) * 10**9 // 16
    assert data["limits"]["host_bytes"] == 1 << 40
    ways = {w["way"]: w for w in data["ways"]}
    assert ways["rank0"]["host_per_node_bytes"] == 84 * 10**9
    assert ways["full"]["gpu_per_rank_bytes"] == 84 * 10**9
    assert ways["async"]["host_per_node_bytes"] == 42 * 10**9
    assert ways["load-each"]["host_per_node_bytes"] == 8 * 84 * 10**9
    assert ways["dcp"]["host_per_node_bytes"] == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--api", "fsdp1", "--way", "plain"), 0),
        (("--api", "fsdp1", "--way", "full"), 1),
        (("--way", "plain"), 0),
    ],
)
def test_one_way(words: tuple[str, ...], code: int, doctor: Doctor) -> None:
    done = doctor(
        "ckpt", "estimate", "--params", "7B", "--world-size", "8", "--to", "/dev/shm", *ROOMY, *words
    )
    assert done.status in (code, 1)  # where the disk is too small as well
    if code:
        assert "more on each GPU" in done.out


def test_checkpoint_is_measured(doctor: Doctor) -> None:
    done = doctor("ckpt", "estimate", checkpoint("fsdp2_dcp.4"), "--world-size", "4", "--format", "json")
    held = index("fsdp2_dcp.4")
    assert done.status == 0
    data = done.json["data"]
    assert data["parameter_bytes"] + data["optimizer_bytes"] == sum(t.bytes for t in held.tensors)
    assert data["largest_tensor_bytes"] == 11 * 8 * 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the model once"),
        (("--params", "many"), "no number of parameters"),
        (("/no/such",), "no such file"),
        (("--params", "1B", "--model", "x.py:f"), "name the model once"),
    ],
)
def test_bad_calls(words: tuple[str, ...], said: str, doctor: Doctor) -> None:
    done = doctor("ckpt", "estimate", *words)
    assert done.status == 2 and said in done.err and "Traceback" not in done.err


def test_optimizers_and_unsharded_ranks() -> None:
    assert of_count(10, "bfloat16", "sgd").optimizer == 0
    assert of_count(10, "float32", "amsgrad").optimizer == 120
    whole = {c.way: c for c in costs(of_count(10**9, "float32", "sgd"), Job(8, 8, "ddp", sharded=False))}
    assert whole[Way.SAVE_FULL].gpu_per_rank == 0
    assert whole[Way.SAVE_PER_RANK].disk == 8 * 4 * 10**9
    assert of_checkpoint(index("fsdp2_model.4")).optimizer == 0
