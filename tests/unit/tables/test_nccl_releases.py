from __future__ import annotations

import pytest

from fsdp_doctor.findings import Status
from fsdp_doctor.tables.nccl_releases import DEFECTS, Condition
from fsdp_doctor.tables.versions import at_least


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: f"{d.first}-{d.condition.name}")
def test_entries_are_whole(defect: object) -> None:
    entry = next(d for d in DEFECTS if d is defect)
    assert not at_least(entry.first, entry.fixed)
    assert entry.covers(entry.first) and not entry.covers(entry.fixed)
    assert entry.symptom and entry.workaround[0].isupper() and entry.source


def test_nothing_fails_without_a_condition() -> None:
    assert not [d for d in DEFECTS if d.condition is Condition.ALWAYS and d.status is Status.FAIL]


def test_ranges() -> None:
    arm = next(d for d in DEFECTS if d.condition is Condition.ARM)
    assert arm.covers((2, 28, 9)) and not arm.covers((2, 29, 3)) and not arm.covers((2, 27, 5))
