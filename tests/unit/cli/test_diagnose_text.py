"""The text of a diagnosis: one line for equal messages, ranks as ranges, the folder named once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.logs.room_scenes import SCENES
from tests.unit.cli.conftest import Doctor

Diagnosis = Callable[..., str]


@pytest.fixture
def diagnosis(doctor: Doctor) -> Diagnosis:
    """The text for a folder, its lines joined."""
    return lambda folder, *options: " ".join(doctor("diagnose", str(folder), *options).out.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SCENES["oom-each-on-its-own-gpu-0"].files.items():
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    (tmp_path / "notes.log").write_text("[rank0]: step 1 loss 2.0\n")
    return tmp_path


def test_equal_messages_are_one_line(folder: Path, diagnosis: Diagnosis) -> None:
    said = diagnosis(folder)
    assert said.count("torch.OutOfMemoryError") == 2  # the proof, and the evidence of the summary
    assert "(likewise on ranks 1-5)" in said
    assert f"2 inputs in {folder}, 8 ranks" in said and "proof job.log:" in said
    assert said.count(str(folder)) == 1


def test_verbose_shows_each_line_whole(folder: Path, diagnosis: Diagnosis) -> None:
    said = diagnosis(folder, "--verbose")
    assert said.count("is reserved by PyTorch but unallocated.") >= 6
    assert "likewise" not in said


def test_nobody_waits_where_all_failed(folder: Path, diagnosis: Diagnosis) -> None:
    assert "others wait" not in diagnosis(folder)


def test_launchers_frames_are_left_out(tmp_path: Path, diagnosis: Diagnosis) -> None:
    (tmp_path / "job.log").write_text(
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/opt/venv/bin/torchrun", line 8, in <module>\n'
        "[rank0]:     sys.exit(main())\n"
        '[rank0]:   File "/opt/venv/lib/python3.11/site-packages/thing/core.py", line 4, in connect\n'
        "[rank0]:     raise Trouble(it)\n"
        "[rank0]: thing.Trouble: no way\n"
    )
    said = diagnosis(tmp_path)
    assert "raised in connect" in said and "sys.exit(main())" not in said


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((1, 2, 3), "ranks 1-3"), ((0, 1), "ranks 0, 1"), ((5,), "1 rank only suffered: 5")],
)
def test_ranks_are_ranges(tmp_path: Path, ranks: tuple[int, ...], said: str, diagnosis: Diagnosis) -> None:
    victims = "".join(f"[rank{r}]: RuntimeError: Connection closed by peer [10.0.0.1]:4711\n" for r in ranks)
    failing = "[rank7]: Traceback (most recent call last):\n[rank7]:   File \"/job/a.py\", line 1, in f\n[rank7]: KeyError: 'x'\n"
    (tmp_path / "job.log").write_text(failing + victims)
    assert said.replace("ranks ", "") in diagnosis(tmp_path)
