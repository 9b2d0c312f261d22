"""What people write for strategies and GPUs, and how many parameters a line says."""

from __future__ import annotations

import pytest

from fsdp_doctor.cli.dryrun_options import strategy_of
from fsdp_doctor.cli.dryrun_units import parameters
from fsdp_doctor.tables.gpu_memory import product


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("full_shard", "FULL_SHARD"),
        ("HYBRID_SHARD", "HYBRID_SHARD"),
        ("hybrid_shard_zero2", "_HYBRID_SHARD_ZERO2"),
        ("_HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2"),
        ("reshard_int:4", "RESHARD_INT:4"),
    ],
)
def test_strategies_in_any_case(said: str, meant: str) -> None:
    assert strategy_of(said) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("RTX4090", "RTX 4090"),
        ("a100_80gb", "A100 80GB"),
        ("NVIDIA_H100_80GB_HBM3", "H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("H1000", None),
        ("RTX5050", None),
        ("-5", None),
    ],
)
def test_gpus_as_tools_and_people_write_them(said: str, meant: str | None) -> None:
    found = product(said)
    assert (found.name if found is not None else None) == meant


def test_a_gpu_by_its_memory() -> None:
    found = product("24GB")
    assert found is not None and found.gib == 24


def test_parameters_in_the_unit_that_fits() -> None:
    assert [parameters(n) for n in (0, 999, 37_440, 7_000_000, 215_828_693_000)] == [
        "0",
        "999",
        "37.440K",
        "7.000M",
        "215.829B",
    ]
