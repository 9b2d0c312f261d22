from __future__ import annotations

import pytest

from fsdp_doctor.tables.versions import at_least, is_prerelease, local_tag, parse, same, show


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("580.95.05", (580, 95, 5)),
        ("2.13.0+cu130", (2, 13, 0)),
        ("2.9.0a0+145a3a7", (2, 9, 0)),
        (" v2.29.7 ", (2, 29, 7)),
        ("12", (12,)),
        ("unknown", None),
        ("", None),
        (None, None),
        ("²", None),
    ],
)
def test_parse(text: str | None, numbers: tuple[int, ...] | None) -> None:
    assert parse(text) == numbers


def test_absurd_numbers_do_not_raise() -> None:
    parse("9" * 10_000)


def test_missing_numbers_count_as_zero() -> None:
    assert same((2, 13), (2, 13, 0))
    assert at_least((580,), (580, 0, 0))
    assert not at_least((580,), (580, 65))
    assert at_least((2, 10), (2, 9, 5))


def test_tags() -> None:
    assert local_tag("2.13.0+cu130") == "cu130"
    assert local_tag("2.13.0") is None
    assert is_prerelease("2.9.0a0+145a3a7") and is_prerelease("2.15.0.dev20260801+cu130")
    assert is_prerelease("2.7.0+git1b2c3d4") and not is_prerelease("2.13.0+cu130")
    assert show((13, 0)) == "13.0"
