"""The manifest that training code writes, and what `ckpt check` and `inspect --verify` find with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.checkpoints.saved import checkpoint
from fsdp_doctor.ckpt.manifest import write_manifest
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.ckpt.verify import verify
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two FSDP2 saves of two ranks, a and b, each with its manifest."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    from fixtures.checkpoints.nets import step
    from fixtures.checkpoints.ranks import run
    from fixtures.checkpoints.setups import Setup, trained

    root = tmp_path_factory.mktemp("manifests")

    def save() -> object:
        model, opt = trained(Setup())
        written = []
        for number, name in enumerate(("a", "b"), 1):
            msd, osd = get_state_dict(model, opt)
            dcp.save({"model": msd, "optim": osd}, checkpoint_id=str(root / name))
            written.append(
                write_manifest(root / name, model=model, optimizer=opt, step=number, extra={"run": "x"})
            )
            step(model, opt, 11)
        return [str(w) for w in written]

    answers = run(2, save)
    assert "error" not in answers[0], answers
    assert answers[1]["value"] == ["None", "None"]
    assert torch.__version__
    return root


def broken(path: Path, checked: bool = True) -> list[ProblemKind]:
    index = read_here(str(path))
    found = [p.kind for p in index.problems if p.harm is Harm.BROKEN]
    return found + [p.kind for p in verify(index, str(path)).problems] if checked else found


def test_manifest_tells_the_setup(saved: Path) -> None:
    index = read_here(str(saved / "a"))
    manifest = index.manifest
    assert manifest is not None and not index.problems
    assert (manifest.world_size, manifest.step, manifest.api, manifest.strategy) == (
        2,
        1,
        "fsdp2",
        "FULL_SHARD",
    )
    assert (manifest.mesh, manifest.mesh_names, manifest.wrap) == ((2,), ("shard",), ("Block",))
    assert manifest.optimizer == "AdamW" and manifest.extra == {"run": "x"}
    assert manifest.parameters[0] == "emb.weight" and len(manifest.parameters) == 10
    assert set(manifest.files) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert index.step == 1 and index.world.source.value == "manifest"
    assert broken(saved / "a") == []


def other_shard(folder: Path) -> None:
    shutil.copy(folder.parent.parent / "b" / "__1_0.distcp", folder / "__1_0.distcp")


def flipped(folder: Path) -> None:
    raw = bytearray((folder / "__0_0.distcp").read_bytes())
    raw[700] ^= 4
    (folder / "__0_0.distcp").write_bytes(raw)


def flipped_metadata(folder: Path) -> None:
    raw = bytearray((folder / ".metadata").read_bytes())
    at = raw.rindex(b"relative_path") + 3
    raw[at] ^= 0
    raw[raw.index(b"emb.weight")] ^= 1
    (folder / ".metadata").write_bytes(raw)


def swapped(folder: Path) -> None:
    one, two = folder / "__0_0.distcp", folder / "__1_0.distcp"
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def gone(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()


@pytest.mark.parametrize(
    ("damage", "quick", "verified"),
    [
        (other_shard, True, True),
        (flipped, False, True),
        (flipped_metadata, False, True),
        (swapped, True, True),
        (gone, True, True),
    ],
)
def test_damage_is_found(
    damage: Callable[[Path], None],
    quick: bool,
    verified: bool,
    saved: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = saved / damage.__name__ / "a"
    shutil.copytree(saved / "a", folder)
    damage(folder)
    assert bool(broken(folder, checked=False)) or not quick
    assert bool(broken(folder)) == verified


def test_another_steps_shard_is_found_by_nothing_but_the_manifest(saved: Path) -> None:
    folder = saved / "without" / "a"
    shutil.copytree(saved / "a", folder)
    (folder / "fsdp-doctor-manifest.json").unlink()
    other_shard(folder)
    with_it = saved / "with" / "a"
    shutil.copytree(saved / "a", with_it)
    other_shard(with_it)
    assert ProblemKind.FILE_FOREIGN in broken(with_it, checked=False)
    assert ProblemKind.FILE_FOREIGN not in broken(folder)


def test_stale_files_are_not_listed(tmp_path: Path) -> None:
    shutil.copytree(checkpoint("fsdp2_dcp.2"), tmp_path / "c")
    (tmp_path / "c" / "__2_0.distcp").write_bytes(b"left")
    path = write_manifest(tmp_path / "c", world_size=2)
    assert path is not None
    assert set(json.loads(path.read_text())["files"]) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert [p.name for p in (tmp_path / "c").iterdir() if p.suffix == ".tmp"] == []


def test_unfinished_save_is_refused(tmp_path: Path) -> None:
    shutil.copytree(checkpoint("fsdp2_dcp.2"), tmp_path / "c")
    (tmp_path / "c" / ".metadata").unlink()
    with pytest.raises(FileNotFoundError, match=r"after dcp\.save has returned"):
        write_manifest(tmp_path / "c")


def test_needs_the_standard_library_alone(tmp_path: Path) -> None:
    shutil.copytree(checkpoint("fsdp2_dcp.2"), tmp_path / "c")
    root = str(Path(__file__).parents[2])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from fsdp_doctor.ckpt.manifest import write_manifest;"
        "print(write_manifest(sys.argv[2], step=3)); print({'torch', 'click', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, root, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert read_here(str(tmp_path / "c")).step == 3
