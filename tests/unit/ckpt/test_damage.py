"""One thing is wrong on disk: one problem says so, with the figures."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.read import read
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.checkpoint import Format
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from tests.unit.ckpt.making import Dcp, Tensor, archive, pickled, safetensors, small, torch_file

K = ProblemKind
pytestmark = pytest.mark.timeout(60)


def kinds(path: Path) -> list[ProblemKind]:
    return [p.kind for p in read_here(str(path)).problems]


def missing(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()


def short(folder: Path) -> None:
    os.truncate(folder / "__1_0.distcp", 1000)


def empty(folder: Path) -> None:
    os.truncate(folder / "__1_0.distcp", 0)


def foreign(folder: Path) -> None:
    size = (folder / "__1_0.distcp").stat().st_size
    (folder / "__1_0.distcp").write_bytes(b"another save".ljust(size, b"x"))
    _as_old(folder)


def _as_old(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))


def stale(folder: Path) -> None:
    (folder / "__7_0.distcp").write_bytes(b"PK\x03\x04 left over")


def newer(folder: Path) -> None:
    _as_old(folder)
    os.utime(folder / "__1_0.distcp", (1e9 + 500, 1e9 + 500))


def unfinished(folder: Path) -> None:
    (folder / ".metadata").rename(folder / ".metadata.tmp")


def cut_metadata(folder: Path) -> None:
    os.truncate(folder / ".metadata", 500)


def empty_metadata(folder: Path) -> None:
    os.truncate(folder / ".metadata", 0)


def other_pickle(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickled({"a": 1}))


def fifo(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()
    os.mkfifo(folder / "__1_0.distcp")


def folder_for_file(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()
    (folder / "__1_0.distcp").mkdir()


def fifo_for_metadata(folder: Path) -> None:
    (folder / ".metadata").unlink()
    os.mkfifo(folder / ".metadata")


def broken_link(folder: Path) -> None:
    (folder / "__1_0.distcp").unlink()
    (folder / "__1_0.distcp").symlink_to("nowhere")


def link_out(folder: Path) -> None:
    away = folder.parent / "away"
    shutil.move(folder / "__1_0.distcp", away)
    (folder / "__1_0.distcp").symlink_to(away)


def undecodable(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/x\xff\xfe.txt"))).write_bytes(b"")


DAMAGES: dict[Callable[[Path], None], tuple[ProblemKind, Harm, str]] = {
    missing: (K.FILE_MISSING, Harm.BROKEN, "__1_0.distcp is missing"),
    short: (K.FILE_SHORT, Harm.BROKEN, "has 1000 bytes"),
    empty: (K.FILE_SHORT, Harm.BROKEN, "has 0 bytes"),
    foreign: (K.FILE_FOREIGN, Harm.BROKEN, "belongs to another save"),
    stale: (K.FILE_STALE, Harm.NOTE, "__7_0.distcp"),
    newer: (K.FILE_NEWER, Harm.DOUBT, "500 s after the metadata"),
    unfinished: (K.UNFINISHED, Harm.BROKEN, "never renamed"),
    cut_metadata: (K.METADATA_DAMAGED, Harm.BROKEN, "500 bytes"),
    empty_metadata: (K.METADATA_DAMAGED, Harm.BROKEN, "is empty"),
    other_pickle: (K.METADATA_STRANGE, Harm.BROKEN, "where DCP's Metadata should be"),
    fifo: (K.FILE_SPECIAL, Harm.BROKEN, "is a FIFO"),
    folder_for_file: (K.FILE_SPECIAL, Harm.BROKEN, "is a folder"),
    fifo_for_metadata: (K.FILE_SPECIAL, Harm.BROKEN, ".metadata is a FIFO"),
    broken_link: (K.FILE_LINK, Harm.BROKEN, "a link to nowhere"),
    link_out: (K.FILE_LINK, Harm.DOUBT, "leads out of the checkpoint"),
    undecodable: (K.NAME_UNDECODABLE, Harm.DOUBT, r"x\udcff\udcfe.txt"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_damage_is_one_problem(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = small().write(tmp_path / "ckpt")
    assert kinds(folder) == []
    damage(folder)
    index = read(str(folder), 30.0)
    kind, harm, words = DAMAGES[damage]
    assert [(p.kind, p.harm) for p in index.problems] == [(kind, harm)], index.problems
    assert words in index.problems[0].detail
    assert index.format is Format.DCP
    assert index.world.size == 2 or damage in (fifo_for_metadata,)


def test_lost_tensors_are_named(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "ckpt")
    missing(folder)
    problem = read_here(str(folder)).problems[0]
    assert problem.tensor_count == 6 and "model.emb.weight" in problem.tensors
    assert problem.bytes and problem.bytes > 0 and problem.rank == 1


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "__1_0.distcp/../../x", "a\0b", "~/x", "x" * 300, "", "..", "a\\b"]
)
def test_names_that_lead_elsewhere_are_not_opened(tmp_path: Path, name: str) -> None:
    dcp = small()
    dcp.paths = {"__1_0.distcp": name}
    index = read(str(dcp.write(tmp_path / "ckpt")), 30.0)
    found = [p for p in index.problems if p.kind is K.NAME_UNSAFE]
    assert len(found) == 1 and found[0].harm is Harm.UNSAFE
    assert not any(f.path.endswith("passwd") for f in index.files)


def test_chunks_that_do_not_cover(tmp_path: Path) -> None:
    dcp = small()
    dcp.write(tmp_path / "whole")
    dcp.tensors["model.emb.weight"] = (11, 8)
    for change, kind in ((_gap, K.COVERAGE_GAP), (_twice, K.COVERAGE_OVERLAP), (_outside, K.CHUNK_OUTSIDE)):
        index = _with_rows(tmp_path / "whole", change)
        assert [p.kind for p in index] == [kind]


def _with_rows(folder: Path, change: Callable[[list[int]], list[int]]) -> list[object]:
    """The problems of tensors whose rows were changed."""
    from array import array

    from fsdp_doctor.ckpt.dcp_whole import judge_tensors
    from fsdp_doctor.ckpt.draft import TensorDraft
    from fsdp_doctor.ckpt.store import LocalStore

    draft = Draft(LocalStore(str(folder)), ())
    made = draft.tensor(TensorDraft("w", ("w",), (4, 2), "float32"))
    made.place = array("q", change([0, 0, 2, 2, 0, 0, 16, 0, 2, 0, 2, 2, 0, 16, 16, 1]))
    judge_tensors(draft, "")
    return list(draft.problems)


def _gap(rows: list[int]) -> list[int]:
    return rows[:8]


def _twice(rows: list[int]) -> list[int]:
    return [*rows, 1, 0, 2, 2, 0, 32, 16, 1]


def _outside(rows: list[int]) -> list[int]:
    return [*rows[:8], 3, 0, 2, 2, 0, 16, 16, 1]


def test_metadata_may_name_places_twice(tmp_path: Path) -> None:
    dcp = small()
    dcp.paths = {"__1_0.distcp": "__0_0.distcp"}
    found = kinds(dcp.write(tmp_path / "ckpt"))
    assert K.REGIONS_OVERLAP in found


def torch_damage(name: str) -> bytes:
    good = torch_file({"w": Tensor("0", (64, 4))})
    return {
        "cut": good[: len(good) // 2],
        "no end record": good[:-22],
        "two data.pkl": archive({"data.pkl": pickled({}), "x": b""})
        + archive({"data.pkl": pickled({})}, "b"),
        "compressed": _compressed(),
        "no data.pkl": archive({"other": b"1"}),
        "torchscript": archive({"data.pkl": pickled({}), "constants.pkl": b"", "code/x.py": b""}),
        "storage too small": archive({"data.pkl": pickled({"w": Tensor("0", (8, 8))}), "data/0": b"\0" * 16}),
        "storage missing": archive({"data.pkl": pickled({"w": Tensor("0", (8, 8))})}),
        "flipped pickle": good.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9", 1),
        "zeros": bytes(5000),
        "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n" * 3,
        "empty": b"",
        "entries that overlap": _overlapping(),
        "a million entries": _claiming(1_000_000_000),
    }[name]


def _compressed() -> bytes:
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", pickled({"w": Tensor("0", (1 << 20,))}))
        made.writestr("archive/data/0", bytes(4 << 20))
    return out.getvalue()


def _overlapping() -> bytes:
    good = bytearray(torch_file({"w": Tensor("0", (64, 4)), "v": Tensor("1", (64, 4))}))
    first, second = good.rfind(b"archive/data/0"), good.rfind(b"archive/data/1")
    good[second - 4 : second] = good[first - 4 : first]  # the offset of the local header
    return bytes(good)


def _claiming(count: int) -> bytes:
    import struct

    record = struct.pack("<IQ2H2L4Q", 0x06064B50, 44, 45, 45, 0, 0, count, count, 46 * count, 0)
    locator = struct.pack("<IIQI", 0x07064B50, 0, 100, 1)
    end = struct.pack("<I4H2LH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return b"PK\x03\x04".ljust(100, b"\0") + record + locator + end


TORCH = {
    "cut": K.ZIP_DAMAGED,
    "no end record": K.ZIP_DAMAGED,
    "compressed": K.ZIP_HOSTILE,
    "no data.pkl": K.UNSUPPORTED,
    "torchscript": K.UNSUPPORTED,
    "storage too small": K.STORAGE_SIZE,
    "storage missing": K.STORAGE_SIZE,
    "flipped pickle": K.ZIP_DAMAGED,
    "zeros": K.ZIP_DAMAGED,
    "text": K.UNSUPPORTED,
    "empty": K.FILE_SHORT,
    "entries that overlap": K.ZIP_HOSTILE,
    "a million entries": K.ZIP_HOSTILE,
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(torch_damage(name))
    assert kinds(path) == [TORCH[name]], read_here(str(path)).problems
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "model.pt").write_bytes(torch_damage(name))
    assert kinds(tmp_path / "in") == [TORCH[name]]


def test_safetensors(tmp_path: Path) -> None:
    good = safetensors({"a": (3, 4), "b": (5,)})
    cases = {
        "cut": (good[:-8], K.FILE_SHORT),
        "longer": (good + b"x", K.HEADER_DAMAGED),
        "huge header": (b"\xff" * 7 + b"\x7f" + good[8:], K.HEADER_DAMAGED),
        "no json": (good[:8] + b"{x" + good[10:], K.HEADER_DAMAGED),
        "deep json": ((20_000).to_bytes(8, "little") + b"{" + b"[" * 19_999, K.HEADER_DAMAGED),
        "list": ((2).to_bytes(8, "little") + b"[]", K.HEADER_DAMAGED),
        "empty": (b"", K.FILE_SHORT),
    }
    for name, (raw, kind) in cases.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(raw)
        assert kinds(path) == [kind], (name, read_here(str(path)).problems)
    (tmp_path / "good.safetensors").write_bytes(good)
    assert kinds(tmp_path / "good.safetensors") == []


def test_numbered_files_and_an_index(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00003.safetensors").write_bytes(safetensors({"a": (3,)}))
    (tmp_path / "model-00003-of-00003.safetensors").write_bytes(safetensors({"c": (3,)}))
    index = read_here(str(tmp_path))
    assert [p.kind for p in index.problems] == [K.FILE_MISSING]
    assert "model-00002-of-00003.safetensors" in index.problems[0].detail
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    assert K.NAME_UNSAFE in kinds(tmp_path)


def test_files_of_ranks_that_are_missing(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        raw = torch_file({"layers.0._flat_param": Tensor("0", (10,))})
        (tmp_path / f"model_rank{rank}.pt").write_bytes(raw)
    index = read_here(str(tmp_path))
    assert index.format is Format.LOCAL_PER_RANK and index.world.size == 4
    assert [(p.kind, p.rank) for p in index.problems] == [(K.RANK_MISSING, 2)]


def test_steps_of_two_saves(tmp_path: Path) -> None:
    from fixtures.checkpoints import saved

    early, late = saved.checkpoint("fsdp2_dcp.4"), saved.checkpoint("fsdp2_later.4")
    folder = tmp_path / "ckpt"
    shutil.copytree(early, folder)
    shutil.copy2(late / "__2_0.distcp", folder / "__2_0.distcp")
    index = read_here(str(folder))
    mixed = [p for p in index.problems if p.kind is K.STEPS_MIXED]
    assert len(mixed) == 1 and "__2_0.distcp" in mixed[0].detail


def test_sockets_and_devices(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "c")
    (folder / "__1_0.distcp").unlink()
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(folder)
        try:
            made.bind("__1_0.distcp")
        finally:
            os.chdir(here)
        index = read(str(folder), 30.0)
    assert [p.kind for p in index.problems] == [K.FILE_SPECIAL]
    assert "socket" in index.problems[0].detail
    index = read("/dev/zero", 30.0)
    assert [p.kind for p in index.problems] == [K.FILE_SPECIAL]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user to be")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "ckpt")
    (folder / "__1_0.distcp").chmod(0)
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(path.stat().st_mode | stat.S_IXOTH)
        if path == Path("/tmp"):
            break
    child = Path(read.__code__.co_filename).with_name("read_child.py")
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
            sys.executable,
            "-c",
            PROGRAM,
            str(child),
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    if "Permission" in done.stderr:
        pytest.skip("the other user cannot run this Python")
    assert done.stdout.split() == ["file_forbidden"], done.stderr


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parents[2]))
from fsdp_doctor.ckpt.reading import read_here
print(*(p.kind.value for p in read_here(sys.argv[2]).problems))
"""


def test_files_that_change_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsdp_doctor.ckpt.reading as reading

    folder = small().write(tmp_path / "ckpt")
    real = reading.recognise

    def during(draft: Draft) -> None:
        real(draft)
        with (folder / "__0_0.distcp").open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(reading, "recognise", during)
    assert kinds(folder) == [K.CHANGED]


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert kinds(tmp_path / "empty") == [K.NOT_A_CHECKPOINT]
    small().write(tmp_path / "run" / "step-1")
    small().write(tmp_path / "run" / "step-2")
    assert kinds(tmp_path / "run") == [K.SEVERAL]
    assert kinds(tmp_path / "nowhere") == [K.NOT_FOUND]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    assert kinds(tmp_path / "notes") == [K.NOT_A_CHECKPOINT]


def test_an_idle_rank_is_no_problem(tmp_path: Path) -> None:
    folder = Dcp(2)
    folder.tensors = {"model.w": (1, 4)}
    made = folder.write(tmp_path / "ckpt")
    (made / "__1_0.distcp").write_bytes(b"")
    index = read_here(str(made))
    assert not index.problems and index.world.size == 2


def test_a_foreign_file_that_is_short_is_one_problem(tmp_path: Path) -> None:
    small().write(tmp_path)
    name = next(p.name for p in sorted(tmp_path.iterdir()) if p.suffix == ".distcp" and p.stat().st_size)
    size = (tmp_path / name).stat().st_size
    (tmp_path / name).write_bytes(b"x" * (size - 1))
    os.utime(tmp_path / name, (9e8, 2e9))
    assert kinds(tmp_path) == [ProblemKind.FILE_FOREIGN]
    (tmp_path / name).write_bytes(bytes(size))
    assert kinds(tmp_path) == [ProblemKind.FILE_FOREIGN]
    assert "was not written whole" in read_here(str(tmp_path)).problems[0].detail
