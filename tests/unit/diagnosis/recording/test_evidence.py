"""What the host tells of a run."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from fsdp_doctor import process
from fsdp_doctor.diagnosis.recording import evidence
from fsdp_doctor.process import Outcome


def lines(*texts: str, ago: float = 1.0) -> bytes:
    stamp = (datetime.now(timezone.utc) - timedelta(seconds=ago)).isoformat(timespec="microseconds")
    return "\n".join(f"{stamp.replace('.', ',')} {t}" for t in texts).encode()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    said: list[bytes] = [b""]
    monkeypatch.setattr(process, "run", lambda *_, **__: Outcome(0, said[0]))
    monkeypatch.setattr(evidence, "_counts_like_the_kernel", lambda: True)
    return said


OOM = "Out of memory: Killed process 51 (python) total-vm:1kB, anon-rss:2kB"
XID = "NVRM: Xid (PCI:0000:00:06): 43, pid=883, name=python3, channel 0x6d"


def told(since: float = 60.0, pids: tuple[int, ...] = (51, 52)) -> list[str]:
    return [w.split(" ", 1)[1] for w in evidence.kernel_lines(since, pids)]


def test_kills_and_faults_are_kept_and_the_rest_is_not(kernel: list[bytes]) -> None:
    kernel[0] = lines(
        OOM, "usb 1-1: new device", "NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus"
    )
    assert [w.split(":")[0] for w in told()] == ["Out of memory", "NVRM"]


def test_what_was_before_the_run_is_not(kernel: list[bytes]) -> None:
    kernel[0] = lines(OOM, ago=3600)
    assert told() == []


def test_another_jobs_fault_on_the_same_host_is_not(kernel: list[bytes]) -> None:
    kernel[0] = lines(XID)
    assert told() == [] and told(pids=(883,)) == [XID] and told(pids=()) == [XID]


def test_in_a_container_process_ids_say_nothing(kernel: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_counts_like_the_kernel", lambda: False)
    kernel[0] = lines(XID)
    assert told() == [XID]


def test_a_log_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", lambda *_, **__: Outcome(1, b"", b"Operation not permitted"))
    assert evidence.kernel_lines(60.0) == ()


def test_kills_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\noom_group_kill 0\n")
    monkeypatch.setattr(evidence, "_counters", lambda root: [root / "absent", root / "memory.events"])
    assert evidence.oom_kills(tmp_path) == 2
    (tmp_path / "memory.events").write_text("low 0\n")
    assert evidence.oom_kills(tmp_path) is None
