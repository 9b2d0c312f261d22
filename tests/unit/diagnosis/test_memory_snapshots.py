"""Snapshots of CUDA memory: summed as torch writes them, joined to the logs' error, and never trusted."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from fixtures.logs import HEALTHY, snapshots
from fixtures.logs.scenes import oom
from fsdp_doctor.cli.main import run
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.flight.child import dump, large_snapshot, plain
from fsdp_doctor.diagnosis.session import incident, read
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.incident import Incident

MIB = snapshots.MIB
NAME = "rank2_memory_snapshot.pickle"


def diagnosed(*paths: Path) -> tuple[Incident, Diagnosis]:
    found = incident(read([str(p) for p in paths]))
    return found, conclude(found)


def test_figures_of_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(snapshots.snapshot([*snapshots.fragmented(0), *snapshots.fragmented(3)]))
    evidence, diagnosis = diagnosed(tmp_path)
    (found,) = evidence.snapshots
    assert found.rank == 2
    assert [d.device for d in found.devices] == [0, 3]
    first = found.devices[0]
    figures = (first.allocated, first.pending, first.inactive, first.reserved, first.largest_inactive)
    assert figures == (1800 * MIB, 40 * MIB, 600 * MIB, 2440 * MIB, 200 * MIB)
    holders = [(h.file, h.line, h.function, h.bytes // MIB, h.count) for h in first.holders]
    assert holders == [
        ("/job/loss.py", 7, "loss_of", 900, 1),
        ("/job/model.py", 41, "forward", 800, 2),
        ("", 0, "", 100, 1),
    ]
    assert diagnosis.cause is None, "memory in use is no failure"
    assert [i.kind for i in evidence.inputs] == ["memory snapshot"]


@pytest.mark.parametrize("packed", [False, True])
def test_out_of_memory_in_a_snapshot_alone(tmp_path: Path, packed: bool) -> None:
    data = snapshots.snapshot(snapshots.fragmented(), oom=512)
    path = tmp_path / (NAME + ".gz" * packed)
    path.write_bytes(gzip.compress(data) if packed else data)
    _, diagnosis = diagnosed(path)
    cause = diagnosis.cause
    assert cause is not None
    assert (cause.code, cause.row, cause.culprits) == ("LOG022", "oom", (2,))
    assert "512.00 MiB" in cause.title and "/job/loss.py:7" in cause.title
    assert "fragmentation" in cause.why and "expandable_segments" in cause.fixes[0].text
    assert any("900.00 MiB in 1 block at /job/loss.py:7" in p.text for p in cause.evidence)


def test_compact_memory_is_not_called_fragmented(tmp_path: Path) -> None:
    compact = snapshots.segment(
        0, 1 << 40, [(2000, "active_allocated", snapshots.MODEL), (20, "inactive", [])]
    )
    (tmp_path / NAME).write_bytes(snapshots.snapshot([compact], oom=512))
    cause = diagnosed(tmp_path)[1].cause
    assert cause is not None
    assert cause.why.startswith("The lines that hold")
    assert not any("expandable" in f.text for f in cause.fixes)


@pytest.mark.parametrize(
    ("name", "joined"), [(NAME, True), ("snapshot.pickle", True), ("rank_1.pickle", False)]
)
def test_evidence_for_the_error_of_the_log(tmp_path: Path, name: str, joined: bool) -> None:
    (tmp_path / "job.log").write_text(HEALTHY + oom(2))
    (tmp_path / name).write_bytes(snapshots.snapshot(snapshots.fragmented(), oom=512))
    cause = diagnosed(tmp_path)[1].cause
    assert cause is not None
    assert (cause.code, cause.culprits) == ("LOG301", (2,))
    assert any(p.file.endswith(name) for p in cause.evidence) == joined
    assert any("expandable" in f.text for f in cause.fixes) == joined


class _Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.canary),)


def test_a_hostile_snapshot_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    root = {"segments": [], "device_traces": [[]], "more": _Evil(canary)}
    path = tmp_path / NAME
    path.write_bytes(pickle.dumps(root))
    evidence, diagnosis = diagnosed(path)
    assert not canary.exists()
    assert not evidence.snapshots and diagnosis.cause is None
    assert "nothing of it was run" in evidence.inputs[0].problem
    pickle.loads(path.read_bytes())
    assert canary.exists(), "the payload is what it claims to be"


def _nested() -> object:
    nested: list[object] = []
    for _ in range(150):
        nested = [nested]
    return nested


ODD = {
    "segments are no list": {"segments": 5, "device_traces": []},
    "segments are numbers": {"segments": [1, 2], "device_traces": []},
    "blocks are text": {"segments": [{"device": 0, "total_size": 9, "blocks": "x"}], "device_traces": [[]]},
    "figures are odd": {
        "segments": [
            {"device": True, "total_size": -1, "blocks": []},
            {"device": 1 << 40, "total_size": "9", "blocks": []},
            {"device": 0, "total_size": 1 << 200, "blocks": [None, {"size": -5, "state": ["x"], "frames": [3]}]},
        ],
        "device_traces": [None, [3, {"action": "oom", "size": "x", "frames": {}, "device_free": []}]],
    },
    "nested": {"segments": [{"device": 0, "blocks": _nested()}], "device_traces": _nested()},
    "markup": {
        "segments": [
            snapshots.segment(0, 1, [(1, "active_allocated", [{"name": "[red]\x1b[31m", "filename": "a.py", "line": 1}])])
        ],
        "device_traces": [[]],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_snapshots_are_survived(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / NAME
    path.write_bytes(pickle.dumps(ODD[name]))
    for form in ("text", "json"):
        assert run(["diagnose", str(path), "--format", form]) in (0, 1, 3)
        out, err = capsys.readouterr()
        assert "\x1b[31m" not in out + err and "Traceback" not in out + err


def test_a_cut_snapshot_keeps_what_it_held(tmp_path: Path) -> None:
    data = snapshots.snapshot(snapshots.fragmented(), oom=512)
    path = tmp_path / NAME
    path.write_bytes(data[: data.index(b"device_traces") - 8])
    evidence, _ = diagnosed(path)
    assert evidence.snapshots[0].devices[0].allocated == 1800 * MIB
    assert "cut" in evidence.inputs[0].problem


@pytest.mark.parametrize("name", snapshots.SHAPES)
def test_shapes_of_other_releases(tmp_path: Path, name: str) -> None:
    (tmp_path / NAME).write_bytes(pickle.dumps(snapshots.SHAPES[name]()))
    (found,) = diagnosed(tmp_path)[0].snapshots
    first = found.devices[0]
    assert (first.allocated, first.pending, first.reserved) == (1800 * MIB, 40 * MIB, 2440 * MIB)
    assert first.holders[0].bytes == 1800 * MIB if name == "history disabled" else first.holders[0].line == 7
    assert [o.requested // MIB for o in found.ooms] == ([512] if "no trace" not in name else [])


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("oom", [0, 512])
def test_a_large_one_is_read_in_little_memory_with_the_same_figures(
    tmp_path: Path, oom: int, protocol: int
) -> None:
    path = tmp_path / NAME
    path.write_bytes(pickle.dumps(snapshots.long(40_000, oom), protocol=protocol))
    whole, little = dump.describe(str(path)), large_snapshot.read(str(path))
    assert little is not None
    assert little.pop("partial") == large_snapshot.PARTIAL
    assert little == whole
    assert [o[1] for o in whole["ooms"]] == ([oom * MIB] if oom else [])  # type: ignore[attr-defined]


def test_a_large_file_by_the_command(tmp_path: Path) -> None:
    root = snapshots.long(100, 512)
    root["external_annotations"] = ["x" * (dump.LARGE + 1)]
    (tmp_path / NAME).write_bytes(pickle.dumps(root))
    evidence, diagnosis = diagnosed(tmp_path)
    assert evidence.inputs[0].problem == large_snapshot.PARTIAL
    assert diagnosis.cause is not None and "512.00 MiB" in diagnosis.cause.title


def test_a_hostile_large_one_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    root = {"segments": [_Evil(canary)], "device_traces": [[]], "more": "x" * 100_000}
    path = tmp_path / NAME
    path.write_bytes(pickle.dumps(root))
    with pytest.raises(plain.Refused):
        large_snapshot.read(str(path))
    assert not canary.exists()
    for cut in range(0, 400, 7):  # what is left when it is cut is no answer, or one
        path.write_bytes(pickle.dumps(snapshots.long(10, 512))[: -1 - cut * 20])
        with contextlib.suppress(plain.Cut):
            large_snapshot.read(str(path))


def test_torchs_own_reader_takes_these_for_snapshots() -> None:
    """`torch.cuda._memory_viz` sums the same bytes out of what is made here."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    root = snapshots.SHAPES["as torch 2.13 writes it"]()
    sums = viz.segsum(root)
    for line in ("segments: 3", "total_reserved: 2.4GiB", "total_allocated: 1.8GiB", "total_free: 640.0MiB"):
        assert line in sums, sums
    assert "OutOfMemoryError # 512.0MiB requested, 90.0MiB free" in viz.trace(root)


def test_the_command_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / NAME
    path.write_bytes(snapshots.snapshot(snapshots.fragmented()))
    assert run(["diagnose", str(path), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["data"]["memory_snapshots"][0]["devices"][0]["allocated"] == 1800 * MIB
    assert [r["status"] for r in report["results"] if r["code"] == "LOG022"] == ["info"]
    assert run(["diagnose", str(path)]) == 0
    out = capsys.readouterr().out
    assert "No failure found" in out and "1.76 GiB allocated" in out and "/job/model.py:41" in out
    path.write_bytes(snapshots.snapshot(snapshots.fragmented(), oom=512))
    assert run(["diagnose", str(path)]) == 1
    out = capsys.readouterr().out
    assert "LOG022" in out and "loss.py:7" in out
