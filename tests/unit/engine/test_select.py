"""The truth table of select and ignore."""

from __future__ import annotations

import pytest

from fsdp_doctor.engine.select import Selection, UnknownCode, selection
from tests.unit.engine.checks import spec


@pytest.mark.parametrize(
    ("select", "ignore", "code", "runs"),
    [
        # nothing said: everything runs
        ("", "", "GPU001", True),
        # only ignore: what matches does not run
        ("", "GPU", "GPU001", False),
        ("", "GPU001", "GPU001", False),
        ("", "GPU001", "GPU002", True),
        ("", "ALL", "GPU001", False),
        # only select: what does not match does not run
        ("GPU", "", "GPU001", True),
        ("GPU", "", "ENV001", False),
        ("GPU001", "", "GPU001", True),
        ("GPU001", "", "GPU002", False),
        ("ALL", "", "ENV001", True),
        # both: the longer prefix wins
        ("GPU", "GPU001", "GPU001", False),
        ("GPU", "GPU001", "GPU002", True),
        ("GPU001", "GPU", "GPU001", True),
        ("GPU001", "GPU", "GPU002", False),
        ("GPU00", "GPU0", "GPU001", True),
        ("GPU0", "GPU00", "GPU001", False),
        # both, equally long: ignored
        ("GPU", "GPU", "GPU001", False),
        ("GPU001", "GPU001", "GPU001", False),
        ("ALL", "ALL", "GPU001", False),
        # ALL is the shortest prefix
        ("ALL", "GPU", "GPU001", False),
        ("ALL", "GPU", "ENV001", True),
        ("GPU", "ALL", "GPU001", True),
        ("GPU", "ALL", "ENV001", False),
        # several
        ("GPU,ENV", "GPU001,ENV0", "ENV001", False),
        ("GPU,ENV001", "GPU001,ENV0", "ENV001", True),
    ],
)
def test_truth_table(select: str, ignore: str, code: str, runs: bool) -> None:
    chosen = Selection(tuple(filter(None, select.split(","))), tuple(filter(None, ignore.split(","))))
    assert chosen.includes(code) is runs


def test_prefixes_are_split_and_upper_case() -> None:
    checks = [spec("GPU001"), spec("ENV002")]
    chosen = selection(["gpu, env"], ["ENV002"], checks)
    assert chosen == Selection(("GPU", "ENV"), ("ENV002",))


@pytest.mark.parametrize("where", ["select", "ignore"])
def test_unknown_prefix_is_an_error(where: str) -> None:
    with pytest.raises(UnknownCode, match="XYZ"):
        selection(
            ["XYZ"] if where == "select" else [], ["XYZ"] if where == "ignore" else [], [spec("GPU001")]
        )
