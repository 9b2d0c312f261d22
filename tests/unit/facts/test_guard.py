from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from fsdp_doctor.facts.guard import Guard, area
from fsdp_doctor.facts.live_files import LiveFiles
from fsdp_doctor.subjects.fact import Unknown


@pytest.fixture
def stuck() -> threading.Event:
    """What a call that hangs waits for; released at the end, so that no thread stays."""
    return threading.Event()


def soon() -> float:
    return time.monotonic() + 60


def test_a_call_that_hangs_costs_its_own_area_only(stuck: threading.Event) -> None:
    guard = Guard(soon(), patience=0.3)
    asked: list[str] = []
    assert guard.call("/sys/class/infiniband/mlx5_0/ports/1/rate", stuck.wait) is None
    assert guard.call("/sys/class/infiniband/mlx5_0/fw_ver", lambda: asked.append("same")) is None
    assert guard.call("/sys/class/infiniband/mlx5_1/fw_ver", lambda: "answer") == "answer"
    assert asked == []
    assert guard.hung("/sys/class/infiniband/mlx5_0")
    stuck.set()
    guard.close()


def test_threads_end_when_the_call_returns_or_the_guard_closes(stuck: threading.Event) -> None:
    before = set(threading.enumerate())
    guard = Guard(soon(), patience=0.2)
    guard.call("/a", stuck.wait)
    guard.call("/b", lambda: 1)
    started = [t for t in threading.enumerate() if t not in before]
    assert len(started) == 2
    stuck.set()
    guard.close()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    assert guard.call("/b", lambda: 2) == 2
    guard.close()


def test_quick_calls_are_answered_after_the_deadline(stuck: threading.Event) -> None:
    guard = Guard(time.monotonic() - 1, patience=60)
    assert guard.call("/a", lambda: 1) == 1
    assert guard.call("/b", stuck.wait) is None
    stuck.set()
    guard.close()


def test_one_process_is_like_another() -> None:
    assert area("/proc/7/cmdline") == area("/proc/12345/cmdline") != area("/proc/7/status")
    assert area("/proc/self/cmdline") != area("/proc/7/cmdline")


class TestFiles:
    @pytest.fixture
    def files(self) -> LiveFiles:
        return LiveFiles(Guard(soon()))

    def test_a_file(self, files: LiveFiles, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x" * 200_000)
        path = str(tmp_path / "f")
        assert files.read(path) == b"x" * 200_000
        assert files.read(path, 70_000) == b"x" * 70_000
        assert files.stat(path) == (200_000, os.getuid())
        assert files.exists(path)

    def test_files_of_the_kernel_are_read_to_their_end(self, files: LiveFiles) -> None:
        status = files.read("/proc/self/status")
        assert isinstance(status, bytes)
        assert status.startswith(b"Name:")
        assert status.rstrip().splitlines()[-1].startswith(b"nonvoluntary_ctxt_switches")
        assert isinstance(files.read("/proc/self/mountinfo"), bytes)

    def test_what_is_no_file_is_not_opened(self, files: LiveFiles, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "socket"))
            for path in (
                tmp_path / "pipe",
                tmp_path / "socket",
                tmp_path,
                Path("/dev/zero"),
                Path("/dev/tty"),
            ):
                assert isinstance(files.read(str(path)), Unknown), path

    def test_what_is_not_there(self, files: LiveFiles, tmp_path: Path) -> None:
        missing = files.read(str(tmp_path / "no" / "file"))
        assert isinstance(missing, Unknown)
        assert missing.absent
        assert files.listdir(str(tmp_path / "no")) == ()
        assert files.readlink(str(tmp_path)) is None
        assert files.stat(str(tmp_path / "no")) is None
        assert not files.exists(str(tmp_path / "no"))

    @pytest.mark.parametrize("path", ["", "\0", "a\0b", "/" + "x" * 5000, "relative/none", "/proc/self/mem"])
    def test_odd_paths(self, files: LiveFiles, path: str) -> None:
        assert isinstance(files.read(path), Unknown)
        assert files.listdir(path) == ()
        assert files.readlink(path) is None
        assert files.realpath(path) is not None

    def test_links_and_folders(self, files: LiveFiles, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "gone").symlink_to("nothing")
        assert files.listdir(str(tmp_path)) == ("a", "b", "gone", "loop")
        assert files.readlink(str(tmp_path / "a")) == "b"
        assert files.realpath(str(tmp_path / "a")) == str((tmp_path / "b").resolve())
        assert files.exists(str(tmp_path / "gone"))
        assert isinstance(files.read(str(tmp_path / "loop")), Unknown)

    def test_a_name_that_is_no_text(self, files: LiveFiles, tmp_path: Path) -> None:
        os.close(os.open(os.fsencode(str(tmp_path)) + b"/\xff", os.O_CREAT | os.O_WRONLY))
        assert files.listdir(str(tmp_path)) == ("?",)
