"""Whole failures are named with rank, row and words; healthy logs are left in peace; thin evidence is called thin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fixtures.logs import HEALTHY, incident_of
from fixtures.logs.all_scenes import SCENES
from fixtures.logs.scenes import Scene
from fsdp_doctor.cli.diagnose_data import data
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.session import incident, read
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.incident import Incident

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
ROWS = {0: {"start", "wrong", None}, 1: {"nccl", "start"}, 2: {"oom"}, 3: {"slow"}, 4: {"save"}, 5: {"load"}}


def written(scene: Scene, folder: Path) -> Path:
    for name, text in scene.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def diagnosed(*paths: Path, plain: bool = False) -> tuple[Incident, Diagnosis]:
    found = incident(read([str(p) for p in paths], plain=plain))
    return found, conclude(found)


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    evidence, diagnosis = diagnosed(written(scene, tmp_path))
    cause = diagnosis.cause
    if scene.healthy:
        assert cause is None, cause
        return
    assert cause is not None
    assert cause.row in scene.rows
    assert set(cause.culprits) == scene.culprits, cause.title
    assert (cause.confidence == "low") == scene.unsure, cause.title
    assert not scene.unsure or cause.title.lower().startswith("cannot tell")
    assert not scene.unsure or cause.record_next
    text = json.dumps(data(evidence, diagnosis))
    for word in scene.words:
        assert re.search(word, text, re.I), word


@pytest.mark.parametrize("case", sorted((LOGS / "threads").iterdir()), ids=lambda p: p.name)
@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain"])
def test_published_thread(case: Path, plain: bool) -> None:
    expected = json.loads((case / "expected.json").read_text())
    evidence, diagnosis = diagnosed(case / "job.log", plain=plain)
    cause = diagnosis.cause
    if expected["row"] is None:
        assert cause is None
        return
    assert cause is not None
    assert cause.row in set().union(*(ROWS[r] for r in (expected["row"], *expected.get("also_ok_row", ()))))
    want, also = expected["culprit_rank"], expected.get("also_ok_culprit", [])
    allowed = [want, *also]
    assert (cause.culprits or (None,)) == ((want,) if want is not None else (None,)) or all(
        c in allowed for c in cause.culprits or (None,)
    )
    text = json.dumps(data(evidence, diagnosis))
    for word in expected["must_mention"]:
        assert re.search(word, text, re.I), word


@pytest.mark.parametrize(
    ("name", "code", "culprits"),
    [
        ("log-cuda-oom.txt", "LOG301", (0,)),
        ("log-oom-other-process.txt", "LOG301", (0,)),
        ("log-device-assert.txt", "LOG237", (0,)),
        ("log-duplicate-gpu.txt", "LOG129", ()),
        ("log-nccl-world1.txt", None, ()),
    ],
)
def test_log_of_an_h200(name: str, code: str | None, culprits: tuple[int, ...]) -> None:
    _, diagnosis = diagnosed(LOGS / "h200" / name)
    cause = diagnosis.cause
    assert (cause.code if cause else None) == code
    assert (cause.culprits if cause else ()) == culprits


def test_the_memory_fraction_is_told_from_a_full_gpu() -> None:
    _, diagnosis = diagnosed(LOGS / "h200" / "log-cuda-oom.txt")
    assert diagnosis.cause is not None
    assert "memory fraction" in diagnosis.cause.why
    assert "set_per_process_memory_fraction" in diagnosis.cause.fixes[0].text


def test_timeline_and_summary_name_the_rank(tmp_path: Path) -> None:
    _, diagnosis = diagnosed(written(SCENES["oom-on-one-rank"], tmp_path))
    assert "Rank 2" in diagnosis.summary
    assert any("rank 2" in line and "LOG301" in line for line in diagnosis.timeline)
    states = {r.rank: r.state for r in diagnosis.ranks}
    assert states == {0: "waiting", 1: "waiting", 2: "failed", 3: "waiting"}


def test_same_incident_same_diagnosis() -> None:
    files = {"job.log": HEALTHY + "[rank1]: ValueError: x\n"}
    assert conclude(incident_of(files)) == conclude(incident_of(files))
