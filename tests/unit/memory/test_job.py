"""Configurations that contradict themselves are refused before anything is started."""

from __future__ import annotations

import pytest

from fsdp_doctor.memory.job import Job, JobError
from fsdp_doctor.tables.gpu_memory import PROCESSORS, PRODUCTS, product


def job(**more: object) -> Job:
    return Job(**{"model": "m.py:f", "batch": "m.py:b", "world_size": 8, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"optimizer": "adamw_8bit"}, "8-bit"),
        ({"optimizer": "lion"}, "one of adamw"),
        ({"strategy": "ZERO_3"}, "one of FULL_SHARD"),
        ({"strategy": "RESHARD_INT:3"}, "must divide"),
        ({"strategy": "RESHARD_INT:4", "api": "fsdp1"}, "FSDP2 alone"),
        ({"strategy": "RESHARD_INT:x"}, "one of FULL_SHARD"),
        ({"shard_size": 3}, "does not divide --world-size 8"),
        ({"api": "fsdp1", "shard_size": 4}, "HYBRID_SHARD"),
        ({"api": "ddp", "wrap": ("Block",)}, "neither units"),
        ({"api": "ddp", "offload": True}, "nor --offload"),
        ({"api": "ddp", "strategy": "HYBRID_SHARD"}, "HYBRID_SHARD: ddp shards nothing"),
    ],
)
def test_refused(more: dict[str, object], words: str) -> None:
    with pytest.raises(JobError, match=words):
        job(**more).validate()


@pytest.mark.parametrize(
    ("more", "group", "groups"),
    [
        ({}, 8, 1),
        ({"shard_size": 4}, 4, 2),
        ({"strategy": "RESHARD_INT:4"}, 8, 2),
        ({"strategy": "RESHARD_INT:8"}, 8, 1),
        ({"strategy": "RESHARD_INT:2", "shard_size": 4}, 4, 3),
        ({"api": "ddp", "strategy": "NO_SHARD"}, 1, 1),
        ({"api": "fsdp1", "strategy": "NO_SHARD"}, 1, 1),
        ({"api": "fsdp1", "strategy": "HYBRID_SHARD", "world_size": 64}, 8, 2),
    ],
)
def test_groups(more: dict[str, object], group: int, groups: int) -> None:
    made = job(**more)
    made.validate()
    assert (made.shard_group, made.groups) == (group, groups)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("H100 80GB", "H100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("h200", "H200"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("RTX 4090", "RTX 4090"),
        ("79.1", "the GPU"),
        ("24 GiB", "the GPU"),
    ],
)
def test_gpus_by_name(words: str, name: str) -> None:
    found = product(words)
    assert found is not None and found.name == name


@pytest.mark.parametrize("words", ["", "TPU v5", "-3", "0", "GiB"])
def test_no_gpu_of_that_name(words: str) -> None:
    assert product(words) is None


@pytest.mark.parametrize(
    ("words", "processors"),
    [
        ("A100 80GB", 108),
        ("H100 80GB", 132),
        ("NVIDIA H100 PCIe", 114),
        ("L40S", 142),
        ("B200", 148),
        ("80", 132),
    ],
)
def test_multiprocessors_by_name(words: str, processors: int) -> None:
    found = product(words)
    assert found is not None
    assert found.processors == processors


def test_every_architecture_has_a_number_of_multiprocessors() -> None:
    assert {p.sm for p in PRODUCTS} == set(PROCESSORS)
