"""Saves that are not in the archive: torch makes and loads them now, and the doctor is asked the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.load_target import Api, LoadApi, LoadTarget
from fsdp_doctor.subjects.loading import Answer, Cause, Effect, Loading

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]
RANKS = 2


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """The folder of the saves, and what torch said of each load."""
    out = tmp_path_factory.mktemp("few")
    done = subprocess.run(
        [sys.executable, "-m", "fixtures.checkpoints.few", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out, json.loads(done.stdout)


def judged(path: Path, **target: object) -> Loading:
    return assess(read_here(str(path)), LoadTarget(world_size=RANKS, **target))  # type: ignore[arg-type]


def quoted(loading: Loading, cause: Cause, message: str) -> bool:
    """Whether an obstacle of this cause quotes what torch said."""
    said = [o.message for o in loading.obstacles if o.cause is cause and o.message]
    return any(s in message for s in said)


def test_amsgrad_state_into_adam_fails_at_the_first_step(few: tuple) -> None:
    out, torch_said = few
    told = torch_said["amsgrad into adamw"]
    assert (told["outcome"], told["kind"]) == ("error", "KeyError")
    for optimizer in ("adam", "adamw"):
        loading = judged(out / "amsgrad", optimizer=optimizer)
        assert loading.answer is Answer.NO
        assert quoted(loading, Cause.OPTIMIZER_KIND, f"{told['kind']}: {told['message']}")


def test_amsgrad_state_into_amsgrad_loads(few: tuple) -> None:
    out, torch_said = few
    assert torch_said["amsgrad"]["outcome"] == "right"
    assert judged(out / "amsgrad", optimizer="amsgrad").answer is Answer.YES


def test_a_stateless_optimizer_with_fewer_rows_than_ranks(few: tuple) -> None:
    """The checkpoint alone shows the gate of one row; no model is named."""
    out, torch_said = few
    told = torch_said["stateless"]
    assert told["outcome"] == "error"
    loading = judged(out / "stateless", api=Api.FSDP1, optimizer="sgd")
    assert loading.answer is Answer.NO
    assert quoted(loading, Cause.EMPTY_RANKS, told["message"])


def test_a_stateless_optimizer_with_a_mesh_loads(few: tuple) -> None:
    out, torch_said = few
    assert torch_said["stateless with a mesh"]["outcome"] == "right"
    loading = judged(out / "stateless", api=Api.FSDP1_MESH, optimizer="sgd")
    assert loading.answer in (Answer.YES, Answer.YES_CONVERT_API)


@pytest.mark.parametrize("target", [{}, {"optimizer": "adamw"}, {"model_only": True}])
def test_dictionaries_as_single_objects(few: tuple, target: dict[str, object]) -> None:
    out, torch_said = few
    told = torch_said["packed"]
    assert told["outcome"] == "error"
    loading = judged(out / "packed", **target)
    assert loading.answer is Answer.NO
    (found,) = (o for o in loading.obstacles if o.cause is Cause.LOCAL_SLICES)
    assert set(found.examples) == {"model", "optim"}
    assert quoted(loading, Cause.LOCAL_SLICES, told["message"])


def test_dictionaries_as_single_objects_in_a_partial_load(few: tuple) -> None:
    """Nothing is loaded, and nothing is said: no error can be quoted."""
    out, torch_said = few
    told = torch_said["packed, partial"]
    assert told["outcome"] == "lost" and "right" not in told["parameters"]
    loading = judged(out / "packed", partial=True)
    (found,) = (o for o in loading.obstacles if o.cause is Cause.LOCAL_SLICES)
    assert loading.answer is Answer.NO and found.effect is Effect.WRONG and not found.message


def test_the_file_of_one_rank_over_that_of_another(few: tuple) -> None:
    out, torch_said = few
    told = torch_said["files, one copied"]
    assert told["outcome"] == "error"
    loading = judged(out / "copied", api=Api.FSDP1, load_api=LoadApi.PER_RANK)
    assert loading.answer is Answer.NO
    (found,) = (o for o in loading.obstacles if o.cause is Cause.FOREIGN)
    assert found.path == "model_rank1.pt" and "Local rank at save time was 0" in found.found
    assert "Local rank at save time was 0" in told["message"]


def test_files_of_each_rank_load(few: tuple) -> None:
    out, torch_said = few
    assert torch_said["files"]["outcome"] == "right"
    loading = judged(out / "files", api=Api.FSDP1, load_api=LoadApi.PER_RANK)
    assert loading.answer is Answer.YES_SAME_SETUP


def test_a_folder_of_steps_is_where_to_look(few: tuple, tmp_path: Path) -> None:
    """The folder itself is named: the newest whole save is among its steps, not beside it."""
    out, _ = few
    for step in (1, 2):
        shutil.copytree(out / "amsgrad", tmp_path / f"step-{step}")
    (advised,) = (o for o in judged(tmp_path).obstacles if o.cause is Cause.UNREADABLE)
    assert advised.command == f"fsdp-doctor ckpt latest {tmp_path}"
    found = subprocess.run(
        [sys.executable, "-m", *advised.command.replace("fsdp-doctor", "fsdp_doctor").split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0 and str(tmp_path / "step-2") in found.stdout.replace("\n", "")
