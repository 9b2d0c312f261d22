"""The Xid table: complete enough, consistent, and every fix an order."""

from __future__ import annotations

import pytest

from fsdp_doctor.tables.xid import NEWEST, SXID_INFORMATION, XIDS, Kind, XidMeaning


def test_covers_the_catalogue() -> None:
    assert len(XIDS) >= 100
    assert max(XIDS) == NEWEST
    assert all(number == meaning.number for number, meaning in XIDS.items())


@pytest.mark.parametrize(
    "number", [48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143, *range(144, 151), 171, 172]
)
def test_hardware(number: int) -> None:
    assert XIDS[number].kind is Kind.HARDWARE


@pytest.mark.parametrize("number", [8, 13, 31, 32, 43, 45, 69])
def test_application(number: int) -> None:
    assert XIDS[number].kind is Kind.APPLICATION


@pytest.mark.parametrize("number", [63, 92, 154, 162])
def test_information(number: int) -> None:
    assert XIDS[number].kind is Kind.INFORMATION


@pytest.mark.parametrize("meaning", XIDS.values(), ids=lambda m: str(m.number))
def test_words(meaning: XidMeaning) -> None:
    assert meaning.what and not meaning.what.endswith(".")
    assert meaning.fix[0].isupper() and not meaning.fix.endswith(".")


def test_fatal_switch_errors_are_no_information() -> None:
    assert not SXID_INFORMATION & {11001, 12028, 20034, 22003, 23001, 24007}
