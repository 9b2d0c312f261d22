"""Naming devices, comparing PCI addresses, and what restricts a process."""

from __future__ import annotations

import pytest

from fixtures.machines import h100, h100_container, h200_vm
from fixtures.memory import facts_of
from fsdp_doctor.engine.devices import (
    MACHINE_USES,
    RESTRICTION_USES,
    address,
    at_address,
    counted,
    gpu_subject,
    gpu_words,
    restriction,
    used,
    virtual_machine,
)
from fsdp_doctor.subjects.gpu import Gpu, Gpus


@pytest.mark.parametrize(
    "text", ["0000:d1:00.0", "0000:D1:00", "00000000:d1:00.0", "d1:00.0", "d1:00", "PCI:0000:d1:00"]
)
def test_one_address_in_every_form(text: str) -> None:
    assert address(text) == (0, 0xD1, 0)


@pytest.mark.parametrize("text", [None, "", "gpu0", "0000:d1", "xyz:d1:00.0", "0000:d1:00.9"])
def test_no_address(text: str | None) -> None:
    assert address(text) is None
    assert at_address([Gpu(0)], text) is None


def test_domains_differ() -> None:
    assert address("0008:01:00.0") != address("0009:01:00.0")


def test_words() -> None:
    one, several = [Gpu(3, bdf="0000:61:00.0")], [Gpu(0), Gpu(3)]
    assert (gpu_words(one), gpu_words(several)) == ("GPU 3", "GPUs 0, 3")
    assert (counted(1), counted(several)) == ("1 GPU", "2 GPUs")
    assert gpu_subject(one).gpu == 3
    assert gpu_subject(several).gpu == (0, 3)


def test_used() -> None:
    gpus = (Gpu(0), Gpu(1, lost="GpuIsLost"), Gpu(2))
    assert [g.index for g in used(Gpus(gpus))] == [0, 2]
    assert [g.index for g in used(Gpus(gpus, visible=(2, 1)))] == [2]


def test_restriction() -> None:
    kinds = RESTRICTION_USES
    assert restriction(facts_of(h100(), kinds)) is None
    assert "container" in (restriction(facts_of(h100_container(), kinds)) or "")
    job = h100()
    job.env["SLURM_JOB_ID"] = "17"
    assert "slurm" in (restriction(facts_of(job, kinds)) or "")


def test_virtual_machine() -> None:
    assert virtual_machine(facts_of(h200_vm(), MACHINE_USES)) is True
    assert virtual_machine(facts_of(h100(), MACHINE_USES)) is False
