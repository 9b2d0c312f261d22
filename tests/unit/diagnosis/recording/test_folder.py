"""The folder of a run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fsdp_doctor.diagnosis.recording.folder import RUN, FolderError, drop_empty, prepare, write_json


def test_its_parts_are_there(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a" / "b", {})
    assert {p.name for p in folder.iterdir()} == {"flight", "nccl", "stacks", "journal"}


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    write_json(prepare(tmp_path / "a", {}) / RUN, {})
    with pytest.raises(FolderError, match="another run"):
        prepare(tmp_path / "a", {})


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FolderError, match="no folder"):
        prepare(tmp_path / "a", {})


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(FolderError, match="cannot be written"):
        prepare(Path("/proc/run"), {})


def test_blanks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="blanks"):
        prepare(tmp_path / "my run", {})


def test_each_task_of_srun_has_its_own(tmp_path: Path) -> None:
    variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    host = socket.gethostname()
    assert prepare(tmp_path / "a", variables) == tmp_path / "a" / f"{host}.task_1"
    assert prepare(tmp_path / "a", variables, ranks=True) == tmp_path / "a" / f"{host}.rank_1"


def test_what_nobody_wrote_is_dropped(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a", {})
    (folder / "nccl" / "empty.log").touch()
    (folder / "stacks" / "rank_0.txt").write_text("x")
    drop_empty(folder)
    assert {p.name for p in folder.iterdir()} == {"stacks"}


def test_json_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1]})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert os.listdir(tmp_path) == ["x.json"] and '"a"' in (tmp_path / "x.json").read_text()
