"""Tables of measured operators: written whole, read back as written, refused where anything is not as expected."""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_doctor.cli.dryrun_calibration import Tables, compared
from fsdp_doctor.memory.calibrate import unsettled
from fsdp_doctor.memory.calibration import BadTable, Entry, Table, file_name, read, stored, write
from fsdp_doctor.memory.events import COLUMNS, EventList
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.tables.gpu_memory import Product, product

ENTRY = Entry("aten::convolution", '{"operator":"aten::convolution"}', (1 << 20, 256), 4096)
TABLE = Table("2.11.0+cu130", "13.0", 91900, "NVIDIA H200", 90, "2026-12-02T10:00:00+00:00", (ENTRY,))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "new" / file_name(TABLE)
    write(TABLE, file)
    assert read(file) == TABLE
    assert [p.name for p in file.parent.iterdir()] == ["sm90-NVIDIA_H200-torch2.11.0+cu130-cudnn91900.json"]


def test_a_newer_figure_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    newer = replace(ENTRY, during=(7,))
    assert TABLE.with_entries([newer]).entries == (newer,)
    assert TABLE.for_child()[ENTRY.signature] == {"during": (1 << 20, 256), "kept": 4096, "backend": None}


def test_the_newest_table_of_an_architecture_is_found_and_what_is_none_is_passed_over(tmp_path: Path) -> None:
    assert stored(90, tmp_path / "missing") is None
    write(TABLE, tmp_path / file_name(TABLE))
    write(replace(TABLE, sm=80), tmp_path / "sm80-x.json")
    (tmp_path / "sm90-broken.json").write_text("{")
    found = stored(90, tmp_path)
    assert found is not None and found[1] == TABLE
    assert stored(120, tmp_path) is None


def test_a_table_of_the_wanted_gpu_goes_before_a_newer_one(tmp_path: Path) -> None:
    write(TABLE, tmp_path / file_name(TABLE))
    other = replace(TABLE, gpu="NVIDIA H20")
    write(other, tmp_path / file_name(other))
    os.utime(tmp_path / file_name(TABLE), (1, 1))
    assert len(list(tmp_path.iterdir())) == 2
    assert not TABLE.same_versions(other)
    assert (stored(90, tmp_path) or (None, None))[1] == other
    assert (stored(90, tmp_path, lambda t: t.gpu == "NVIDIA H200") or (None, None))[1] == TABLE
    assert (stored(90, tmp_path, lambda t: t.gpu == "NVIDIA GH200") or (None, None))[1] == other


H200, H20 = product("H200"), product("H20")


@pytest.mark.parametrize(
    ("table", "about", "gpu", "words"),
    [
        (TABLE, {"torch": "2.11.1+cpu", "cudnn": None}, H200, ()),
        (TABLE, {"torch": "2.11.0+cu130", "cudnn": 91900}, None, ()),
        (TABLE, {"torch": "2.13.0+cpu", "cudnn": None}, H200, ("torch 2.11.0+cu130 (here 2.13.0+cpu)",)),
        (TABLE, {"torch": "2.11.0", "cudnn": 92000}, H200, ("cuDNN 91900 (here 92000)",)),
        (TABLE, {"torch": "2.11.0"}, H20, ("NVIDIA H200 (asked for H20)",)),
        (TABLE, {"torch": "2.11.0"}, product("80"), ()),
        (None, {"torch": "2.13.0"}, H20, ()),
    ],
)
def test_figures_of_another_gpu_or_library_are_not_used_silently(
    table: Table | None, about: dict[str, object], gpu: Product | None, words: tuple[str, ...]
) -> None:
    done = Replay(EventList(*(array(c) for c in COLUMNS), (), (), 0), about)
    note = compared(Tables(table), done, gpu).note
    assert bool(note) == bool(words)
    assert all(w in note for w in words)


def said() -> dict[str, object]:
    entry = {"operator": "aten::mm", "signature": "{}", "during": [1], "kept": 0, "backend": None}
    head: dict[str, object] = {
        "schema": "fsdp-doctor-calibration/1",
        "created": "",
        "torch": "2.11",
        "gpu": "H",
    }
    return {**head, "cuda": None, "cudnn": None, "sm": 90, "entries": [entry]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "other/1"}, "schema"),
        ({"sm": "90"}, "sm: a whole number"),
        ({"sm": True}, "sm: a whole number"),
        ({"torch": 2.11}, "torch: a text"),
        ({"extra": 1}, "fields"),
        ({"entries": {}}, "entries: a list"),
        ({"entries": [1]}, "entry 0"),
        ({"entries": [{**said()["entries"][0], "kept": -1}]}, "kept"),  # type: ignore[index]
        ({"entries": [{**said()["entries"][0], "kept": 1 << 60}]}, "kept"),  # type: ignore[index]
        ({"entries": [{**said()["entries"][0], "during": [0.5]}]}, "during"),  # type: ignore[index]
        ({"entries": [{**said()["entries"][0], "during": [1] * 300}]}, "at most 256"),  # type: ignore[index]
        ({"entries": [{**said()["entries"][0], "backend": "os.system"}]}, "backend"),  # type: ignore[index]
        ({"entries": [{**said()["entries"][0], "code": "x"}]}, "fields"),  # type: ignore[index]
    ],
)
def test_a_table_with_a_wrong_field_is_refused_with_its_name(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(said()))
    assert read(file).entries[0].during == (1,)
    file.write_text(json.dumps({**said(), **change}))
    with pytest.raises(BadTable, match=words):
        read(file)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '"\\ud800"', "NaN"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(BadTable):
        read(file)


def test_what_is_watched_depends_on_what_was_measured_for_the_architecture() -> None:
    hopper, ampere = unsettled(90), unsettled(80)
    assert "aten::convolution_backward" in hopper
    attention = "aten::_scaled_dot_product_flash_attention_backward"
    assert attention in ampere and attention not in hopper
