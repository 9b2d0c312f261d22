"""Inputs that once made a reader raise."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

from fixtures.dumps.simulate import Sim, fsdp_step
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.flight.child import dump
from fsdp_doctor.diagnosis.session import incident, read

XID = "NVRM: Xid (PCI:0000:00:06): 79, pid=679, name=python3, GPU has fallen off the bus.\n"


def test_a_month_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.write_text(f"[Wed Dxc  2 07:43:47 2026] {XID}Dxc  2 07:43:47 node1 kernel: {XID}")
    cause = conclude(incident(read([str(path)]))).cause
    assert cause is not None and "79" in cause.title


def test_a_state_that_is_a_list() -> None:
    found = Sim(2, lambda rank: fsdp_step(rank, world=2)).run()[0]
    whole = len(found["entries"])
    found["entries"][3]["state"] = ["completed"]
    answer = json.loads(json.dumps(dump.judged(found, "pickle", "")))
    assert (answer["kind"], answer["bad"]) == ("dump", 1)
    assert len(answer["columns"]["state"]) < whole * 2


def test_a_stream_that_does_not_inflate(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"\x80\x02}" * 4000, mtime=0))
    packed[10:20] = b"\xff" * 10
    (tmp_path / "nccl_trace_rank_0.gz").write_bytes(packed)
    assert dump.describe(str(tmp_path / "nccl_trace_rank_0.gz"))["kind"] == "unreadable"


def test_a_member_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"step 1\n")
        archive.writestr("job.log", b"ValueError: bad sample\n")
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02")  # the name of the first member in the table of contents goes
    size = int.from_bytes(data[at + 28 : at + 30], "little")
    changed = data[: at + 28] + b"\0\0" + data[at + 30 : at + 46] + data[at + 46 + size :]
    end = changed.index(b"PK\x05\x06")
    table = int.from_bytes(changed[end + 12 : end + 16], "little") - size
    path.write_bytes(changed[: end + 12] + table.to_bytes(4, "little") + changed[end + 16 :])
    assert [m.filename for m in zipfile.ZipFile(path).infolist()] == ["", "job.log"]
    assert any(s.name.endswith("job.log") for s in read([str(path)]).scans)
