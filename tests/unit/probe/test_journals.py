"""Journals are read while they are written, and whatever stands in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fsdp_doctor.probe.journals import PROGRESS, Journal, Steps


def write(folder: Path, *lines: object, rank: int = 0, raw: bytes = b"") -> None:
    with (folder / f"rank-{rank}.jsonl").open("ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + raw)


def test_fields_lists_and_stages_come_together(tmp_path: Path) -> None:
    pair = {"source": 0, "target": 1, "bytes": 8, "seconds": [0.5], "round": 0, "run": 0, "alone": False}
    write(
        tmp_path,
        {"set": {"pid": 7, "torch": "2.13.0"}},
        {"stage": "import", "detail": "", "at": 1.0},
        {"set": {"host": "node-a", "local_rank": 0}},
        {"stage": "pairs", "detail": "round 1 of 1", "at": 2.0},
        {"add": "pairs", "entry": pair},
        {"skipped": "rank 1: no memory"},
        {"looked": False},
    )
    journal = Journal(tmp_path, 0)
    journal.poll()
    found = journal.measurement()
    assert (found.host, found.pid, found.stage, found.detail) == ("node-a", 7, "pairs", "round 1 of 1")
    assert found.pairs[0].seconds == (0.5,)
    assert journal.looked and journal.skipped == ["rank 1: no memory"]
    assert not journal.done


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal.poll()
    assert not journal.begun
    write(tmp_path, raw=b'{"stage":"imp')
    journal.poll()
    assert journal.stage == "spawn"
    write(tmp_path, raw=b'ort","detail":"","at":1}\n')
    journal.poll()
    assert journal.stage == "import"
    entry = {"direction": "h2d", "bytes": 4, "seconds": [0.1]}
    write(tmp_path, {"add": "copies", "entry": entry})
    journal.poll()
    journal.poll()
    assert len(journal.measurement().copies) == 1


def test_the_first_error_is_kept(tmp_path: Path) -> None:
    for said in ("cause", "consequence"):
        write(tmp_path, {"error": {"kind": "RuntimeError", "text": said}, "at": 1.0})
    journal = Journal(tmp_path, 0)
    journal.poll()
    assert journal.error is not None and journal.error.text == "cause"


def test_a_list_that_does_not_fit_costs_no_other(tmp_path: Path) -> None:
    work = {"wall_seconds": [0.1], "cpu_seconds": [0.1], "device": "cpu"}
    write(tmp_path, {"add": "work", "entry": work}, {"add": "copies", "entry": {"bytes": "many"}})
    journal = Journal(tmp_path, 0)
    journal.poll()
    found = journal.measurement()
    assert len(found.work) == 1 and found.copies == ()


def test_progress_and_stacks(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 3)
    assert journal.steps() == Steps()
    (tmp_path / "rank-3.progress").write_bytes(PROGRESS.pack(5, 4, 1.0, 0.5))
    assert journal.steps() == Steps(5, 4) and journal.steps().waiting
    (tmp_path / "rank-3.progress").write_bytes(b"\0" * 5)
    assert journal.steps() == Steps()
    assert journal.stack() is None and not journal.out_of_time
    (tmp_path / "rank-3.stack").write_text(
        "Stack (most recent call first):\n  old\nTimeout (0:00:05)!\nThread 0x1:\n  new\n"
    )
    assert journal.out_of_time and (journal.stack() or "").endswith("new")


@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), max_size=8))
def test_rubbish_never_raises(lines: list[bytes]) -> None:
    journal = Journal(Path(os.devnull), 0)
    journal.feed(lines)
    journal.measurement()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["stage", "detail", "set", "add", "entry", "error", "kind", "text", "skipped", "looked", "pid", "bytes"]
)


@given(st.lists(st.dictionaries(keys, json_values, max_size=4), max_size=5))
def test_any_objects_never_raise(values: list[dict[str, object]]) -> None:
    journal = Journal(Path(os.devnull), 0)
    journal.feed([json.dumps(v).encode() for v in values])
    journal.measurement()
