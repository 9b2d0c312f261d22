"""The room that is made for a large pickle's memo changes nothing that is read."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from fsdp_doctor.ckpt import safe_pickle


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_same_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, count: int) -> None:
    shared = [f"layers.{n}" for n in range(count)]
    value = {"keys": shared, "again": [(k, {"offset": (n, k)}, shared) for n, k in enumerate(shared)]}
    path = tmp_path / "value.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    monkeypatch.setattr(safe_pickle, "LARGE", 1)
    with path.open("rb") as file:
        found = safe_pickle.load(file, path.stat().st_size).value
    assert found == value
    assert isinstance(found, dict)
    assert all(entry[2] is found["keys"] for entry in found["again"])


def test_place_that_was_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of the memo that nothing was put at is damage, with room as without."""
    path = tmp_path / "damaged.pkl"
    path.write_bytes(b"\x80\x04" + b"]\x94" * 40 + b"h\x29.")
    monkeypatch.setattr(safe_pickle, "LARGE", 1)
    with path.open("rb") as file, pytest.raises(safe_pickle.PickleError, match="41"):
        safe_pickle.load(file, path.stat().st_size)
    with pytest.raises(safe_pickle.PickleError, match="41"):
        safe_pickle.load(io.BytesIO(path.read_bytes()), path.stat().st_size)
