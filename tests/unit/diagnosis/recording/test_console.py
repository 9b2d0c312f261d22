"""Output is passed on unchanged and kept without secrets."""

from __future__ import annotations

import os
from pathlib import Path

from fsdp_doctor.diagnosis.recording.console import LINE_LIMIT, Console


class Sink:
    """A pipe whose reader keeps all."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def read(self) -> bytes:
        os.close(self.writer)
        with os.fdopen(self.reader, "rb") as file:
            return file.read()


def test_bytes_are_passed_on_as_they_come(tmp_path: Path) -> None:
    sink, said = Sink(), []
    console = Console(tmp_path / "console.log", said.append)
    for part in (b"ep\xff", b"och 1\r 50%\r", b"100%\n", b"no end"):
        console.take(7, part, sink.writer)
    console.close()
    assert sink.read() == b"ep\xffoch 1\r 50%\r100%\nno end"
    assert (tmp_path / "console.log").read_bytes() == b"ep\xffoch 1\r 50%\r100%\nno end\n"
    assert console.bytes == 25 and said == []


def test_lines_of_two_streams_are_not_mixed(tmp_path: Path) -> None:
    sink = Sink()
    console = Console(tmp_path / "console.log", lambda _: None)
    console.take(7, b"loss ", sink.writer)
    console.take(8, b"Traceback", sink.writer)
    console.take(7, b"0.5\n", sink.writer)
    console.take(8, b" (most recent)\n", sink.writer)
    console.close()
    sink.read()
    assert (tmp_path / "console.log").read_text() == "loss 0.5\nTraceback (most recent)\n"


def test_secrets_are_shown_to_the_user_and_not_kept(tmp_path: Path) -> None:
    sink = Sink()
    console = Console(tmp_path / "console.log", lambda _: None)
    console.take(7, b"WANDB_API_KEY=0123456789abcdef0123\n", sink.writer)
    console.close()
    assert b"0123456789abcdef" in sink.read()
    kept = (tmp_path / "console.log").read_text()
    assert "0123456789abcdef" not in kept and "redacted" in kept


def test_a_reader_that_has_gone_costs_nothing(tmp_path: Path) -> None:
    sink, said = Sink(), []
    os.close(sink.reader)
    console = Console(tmp_path / "console.log", said.append)
    console.take(7, b"one\n", sink.writer)
    console.take(7, b"two\n", sink.writer)
    console.close()
    os.close(sink.writer)
    assert (tmp_path / "console.log").read_text() == "one\ntwo\n" and said == []


def test_a_full_disk_costs_the_copy_and_not_the_job() -> None:
    sink, said = Sink(), []
    console = Console(Path("/dev/full"), said.append)
    console.take(7, b"one\n", sink.writer)
    console.take(7, b"two\n", sink.writer)
    console.close()
    assert sink.read() == b"one\ntwo\n"
    assert len(said) == 1 and "No space left" in said[0]


def test_a_line_without_end_does_not_fill_memory(tmp_path: Path) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    console = Console(tmp_path / "console.log", lambda _: None)
    for _ in range(40):
        console.take(7, b"x" * 65536, null)
        assert all(len(p) <= LINE_LIMIT + 65536 for p in console._partial.values())
    console.close()
    os.close(null)
    assert (tmp_path / "console.log").stat().st_size == 40 * 65536 + 1
