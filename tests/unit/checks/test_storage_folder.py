"""States of the checkpoint folder that only a live machine shows."""

from __future__ import annotations

import pytest

from fsdp_doctor.checks.storage.checkpoint_folder import cannot_be_written
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Result, Status
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.storage import CheckpointPath, Mount, Storage

DISK = Mount("/", "ext4", "/dev/sda1", ("rw",))


def judge(path: CheckpointPath) -> Result:
    facts = Facts({Storage: Known(Storage((DISK,), {}, path)), Host: Known(Host("node", uid=1000))})
    (result,) = run_checks([cannot_be_written], facts, Options(checkpoint=path.path))
    return result


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        (CheckpointPath("/mnt/ckpt", None, error="no answer in 5 s"), Status.FAIL, "no answer in 5 s"),
        (CheckpointPath("/data/a.pt", True, "/data/a.pt", is_dir=False), Status.FAIL, "is a file"),
        (CheckpointPath("/data/run", True, "/data/run", True, False, DISK), Status.FAIL, "uid 1000"),
        (CheckpointPath("/data/run", False, "/data", None, False, DISK), Status.FAIL, "may not write /data"),
        (
            CheckpointPath("/home/u/run", False, "/home/u", None, True, DISK),
            Status.INFO,
            "does not exist yet",
        ),
        (CheckpointPath("/mnt/run", False, "/mnt", None, True, DISK), Status.WARN, "nearest folder"),
        (CheckpointPath("/home/u/a/b", False, "/home/u", None, True, DISK), Status.WARN, "/home/u"),
        (CheckpointPath("/data/run", None, "/data"), Status.SKIP, "nobody could look"),
        (CheckpointPath("/data/run", True, "/data/run", True, True, DISK), Status.PASS, "ext4"),
    ],
)
def test_states(path: CheckpointPath, status: Status, word: str) -> None:
    result = judge(path)
    assert result.status is status
    assert word in result.found
    assert result.subject.path == path.path
