"""Changed bytes in every kind of file: the reader answers, in bounded time, and never with its own fault."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fixtures.checkpoints import saved
from fsdp_doctor.ckpt import dcp_columns, dcp_metadata, dcp_records, memory
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.ckpt.safe_pickle import PickleError
from fsdp_doctor.ckpt.wire import decode, encode
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.subjects.checkpoint_problem import ProblemKind
from tests.unit.ckpt.making import Tensor, safetensors, small, torch_file

ROUNDS = 150


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in this process gets no more memory than one in the child."""
    monkeypatch.setattr(memory, "_enabled", True)


def changed(raw: bytes, chance: random.Random) -> bytes:
    """Flipped, cut, doubled, removed, or with opcodes and large numbers put in."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data)) if data else 0
        what = chance.randrange(6)
        if what == 0 and data:
            data[at] = chance.randrange(256)
        elif what == 1:
            del data[at : at + chance.randint(1, 20)]
        elif what == 2:
            data[at:at] = data[at : at + chance.randint(1, 40)]
        elif what == 3:
            data[at:at] = chance.choice(
                (b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"R", b"b", b"s", b"\x81", b"t")
            )
        elif what == 4 and chance.random() < 0.3:
            del data[at:]
        else:
            other = chance.randrange(len(data)) if data else 0
            data[at : at + 8] = data[other : other + 8]
    return bytes(data)


def sound(index: CheckpointIndex) -> None:
    assert isinstance(index, CheckpointIndex)
    assert not any(p.kind is ProblemKind.READER_FAILED for p in index.problems)
    again = decode(b"".join(encode(index)))
    assert len(again.tensors) == len(index.tensors) and again.problems == index.problems


@pytest.mark.timeout(100)
@pytest.mark.parametrize("seed", range(2))
def test_metadata(tmp_path: Path, seed: int) -> None:
    folder = small().write(tmp_path / "ckpt")
    real = saved.checkpoint("fsdp2_dcp.2")
    for source in (folder, real):
        copy = tmp_path / f"copy-{source.name}"
        shutil.copytree(source, copy)
        raw = (source / ".metadata").read_bytes()
        chance = random.Random(seed)
        for _ in range(ROUNDS // 2):
            (copy / ".metadata").write_bytes(changed(raw, chance))
            sound(read_here(str(copy)))


@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", ["torch", "ranks", "safetensors", "legacy", "distcp"])
def test_files(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    if name == "torch":
        raw, path = (
            torch_file({"w": Tensor("0", (4, 4)), "v": Tensor("1", (2,))}, {"step": 3}),
            tmp_path / "m.pt",
        )
    elif name == "ranks":
        raw = next(saved.checkpoint("fsdp1_local_files.2").glob("*0*")).read_bytes()
        path = tmp_path / "model_rank0.pt"
    elif name == "safetensors":
        raw, path = safetensors({"a": (3, 4), "b": (5,)}), tmp_path / "m.safetensors"
    elif name == "legacy":
        raw = next(p for p in saved.checkpoint("full_legacy.2").rglob("*") if p.is_file()).read_bytes()
        path = tmp_path / "m.pt"
    else:
        small().write(tmp_path)
        path = tmp_path / "__0_0.distcp"
        raw = path.read_bytes()
    for _ in range(ROUNDS):
        path.write_bytes(changed(raw, chance))
        sound(read_here(str(tmp_path)))


@pytest.mark.timeout(100)
def test_both_ways_to_read_metadata_agree(tmp_path: Path) -> None:
    """The one for large metadata keeps numbers only, and gives up rather than differ."""
    chance = random.Random(5)
    raw = (saved.checkpoint("fsdp2_dcp.2") / ".metadata").read_bytes()
    path = tmp_path / "metadata"
    compared = 0
    for number in range(ROUNDS * 2):
        data = bytearray(raw)
        if number:  # one byte: most such pickles still load
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        with path.open("rb") as file:
            try:
                compact = dcp_metadata._read(file, len(raw), dcp_columns.Columns())
            except (dcp_records.Irregular, PickleError):
                continue
            file.seek(0)
            exact = dcp_metadata._read(file, len(raw), dcp_records.Exact())
        assert compact == exact
        compared += 1
    assert compared >= 20


def test_every_real_metadata_is_read_alike() -> None:
    damaged = saved.folder() / "damaged"  # copies that other tests of this process have spoilt
    for path in saved.folder().rglob("*.metadata"):
        if damaged in path.parents:
            continue
        with path.open("rb") as file:
            size = path.stat().st_size
            try:
                compact = dcp_metadata._read(file, size, dcp_columns.Columns())
            except dcp_records.Irregular:
                assert "megatron" in str(path)
                continue
            file.seek(0)
            assert compact == dcp_metadata._read(file, size, dcp_records.Exact()), path
