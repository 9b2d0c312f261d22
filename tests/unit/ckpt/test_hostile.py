"""Pickles that want to run something, or to take all memory: nothing runs, and the answer names them."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import time
from pathlib import Path

import pytest

from fsdp_doctor.ckpt.read import read
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Trust
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from tests.unit.ckpt.making import archive, pickled, small, torch_file

pytestmark = pytest.mark.timeout(60)
SECONDS = 40.0


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def payloads(canary: Path) -> dict[str, bytes]:
    """Every way in which a pickle can reach for a call; each would create the canary if it were loaded."""
    touch = f"touch {canary}"
    made = f"open({str(canary)!r}, 'w').close()"
    return {
        "reduce os.system": b"cos\nsystem\n(" + text(touch) + b"tR.",
        "posix.system": b"cposix\nsystem\n(" + text(touch) + b"tR.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(touch) + b"\x85R.",
        "inst": b"(" + text(touch) + b"ios\nsystem\n.",
        "obj": b"(cos\nsystem\n" + text(touch) + b"o.",
        "newobj": b"\x80\x02csubprocess\nPopen\n(" + text(touch) + b"I01\nt\x81.",
        "newobj_ex": b"\x80\x04csubprocess\nPopen\n(" + text(touch) + b"t}\x8c\x05shell\x88s\x92.",
        "eval": b"cbuiltins\neval\n(" + text(made) + b"tR.",
        "exec": b"c__builtin__\nexec\n(" + text(made) + b"tR.",
        "import walk": b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n("
        + text("os")
        + b"tR"
        + text("system")
        + b"tR("
        + text(touch)
        + b"tR.",
        "getattr of a class": b"cbuiltins\ngetattr\n(cos\nenviron\n" + text("clear") + b"tR)R.",
        "dotted name": b"\x80\x04\x8c\x02os\x8c\x0bpath.os.sys\x93.",
        "partial with a new state": b"cfunctools\npartial\n(cos\nsystem\ntR(cos\nsystem\n("
        + text(touch)
        + b"t}Ntb)R.",
        "build on a class": b"cos\nsystem\n}"
        + text("__setstate__")
        + b"cos\nsystem\nsb("
        + text(touch)
        + b"tR.",
        "build with slots": b"ccollections\nOrderedDict\nN}" + text("__new__") + b"cos\nsystem\ns\x86b)R.",
        "build on getattr": b"cbuiltins\ngetattr\n}" + text("x") + b"cos\nsystem\nsb.",
        "persistent id": text(touch) + b"Q.",
        "extension": b"\x80\x02\x82\x01.",
        "buffer": b"\x80\x05\x97.",
        "torch.load": b"ctorch\nload\n(" + text(str(canary)) + b"tR.",
        "numpy": b"cnumpy\nmemmap\n(" + text(str(canary)) + text("uint8") + text("w+") + b"tR.",
        "bytearray of a path": b"cbuiltins\nopen\n(" + text(str(canary)) + text("w") + b"tR.",
    }


def placed(where: str, raw: bytes, folder: Path) -> Path:
    """The payload as each file that one of torch's loaders would unpickle."""
    if where == "metadata":
        small().write(folder)
        (folder / ".metadata").write_bytes(raw)
    elif where == "file":
        folder.mkdir()
        (folder / "model.pt").write_bytes(archive({"data.pkl": raw, "version": b"3\n"}))
    elif where == "legacy":
        folder.mkdir()
        head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
        (folder / "model.pt").write_bytes(head + raw + pickle.dumps([], 2))
    else:
        dcp = small()
        dcp.write(folder)
        _into_blob(folder, raw)
    return folder


def _into_blob(folder: Path, raw: bytes) -> None:
    """Put the payload where the object `step` lies, in an archive of the same length."""
    index = read_here(str(folder))
    entry = next(e for e in index.entries if e.key == "step")
    assert entry.file is not None and entry.start is not None and entry.length is not None
    path = folder / index.files[entry.file].path
    own = archive({"data.pkl": raw, "version": b"3\n"})
    data = path.read_bytes()
    own += b"\0" * max(0, entry.length - len(own))
    path.write_bytes(data[: entry.start] + own[: entry.length] + data[entry.start + entry.length :])


@pytest.mark.parametrize("where", ["metadata", "file", "legacy", "blob"])
def test_nothing_runs(tmp_path: Path, where: str) -> None:
    canary = tmp_path / "canary"
    for number, (name, raw) in enumerate(payloads(canary).items()):
        folder = placed(where, raw, tmp_path / f"{where}{number}")
        # In this process too: a child that ran something in another folder would hide it.
        index = read_here(str(folder))
        assert not canary.exists(), name
        assert isinstance(index, CheckpointIndex)


def test_a_hostile_pickle_is_named(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    raw = payloads(canary)["reduce os.system"]
    for where in ("metadata", "file", "legacy"):
        index = read(str(placed(where, raw, tmp_path / where)), SECONDS)
        found = [p for p in index.problems if p.kind is ProblemKind.PICKLE_HOSTILE]
        assert len(found) == 1 and found[0].harm is Harm.UNSAFE, where
        assert "os.system" in found[0].detail
        assert [g.name for g in index.globals if g.trust is Trust.DANGEROUS] == ["os.system"]
    assert not canary.exists()


def test_a_hostile_object_beside_sound_tensors_is_named(tmp_path: Path) -> None:
    value = b"}(" + text("a") + b"cos\nsystem\n(" + text(f"touch {tmp_path / 'canary'}") + b"tRu."
    (tmp_path / "m.pt").write_bytes(archive({"data.pkl": b"\x80\x02" + value, "version": b"3\n"}))
    index = read(str(tmp_path / "m.pt"), SECONDS)
    assert [p.kind for p in index.problems] == [ProblemKind.PICKLE_HOSTILE]
    assert not (tmp_path / "canary").exists()


def test_the_canary_would_be_seen(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    ran = []
    for name, raw in payloads(canary).items():
        canary.unlink(missing_ok=True)
        if name in ("torch.load", "numpy"):
            continue
        if os.fork() == 0:  # the payloads that are whole do run when Python itself loads them
            with contextlib.suppress(BaseException):
                pickle.loads(raw)
            os._exit(0)
        os.wait()
        for _ in range(10):
            if canary.exists():
                ran.append(name)
                break
            time.sleep(0.005)
    assert len(ran) >= 8, ran


BOMBS = {
    "memo index": b"Nr\xff\xff\xff\x07.",
    "memo index, larger": b"Nr\xff\xff\xff\x7f.",
    "long text": b"X\xff\xff\xff\x7f" + b"a" * 100 + b".",
    "long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b".",
    "long number": b"\x8b" + struct.pack("<i", 0x7FFFFFFF) + b".",
    "large frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    "huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "deep lists": b"(l" * 2_000_000 + b".",
    "deep tuples": b")" + b"\x85" * 2_000_000 + b".",
    "deep tuple as a key": b"})" + b"\x85" * 400_000 + b"Ns.",
    "doubled tuples as a key": b"}(" + b")" + b"2\x86" * 60 + b"Ns.",
    "doubled dictionaries": b"}"
    + b"q\x00}(X\x01\x00\x00\x00ah\x00X\x01\x00\x00\x00bh\x00u0h\x00" * 50
    + b".",
    "many globals": b"".join(b"cm%d\nn\n0" % i for i in range(30_000)) + b"N.",
    "recursive": b"](h\x00e.",
    "itself in itself": b"]q\x00h\x00a.",
    "numbers that do not hash alike": b"}("
    + b"".join(b"I%d\nN" % (i * ((1 << 61) - 1)) for i in range(3000))
    + b"u.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_bounded(tmp_path: Path, name: str) -> None:
    import resource

    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "model.pt").write_bytes(archive({"data.pkl": BOMBS[name], "version": b"3\n"}))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    index = read(str(folder), 8.0)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak <= max(before, 900 << 10)
    assert not any(p.kind is ProblemKind.READER_FAILED for p in index.problems), index.problems
    assert not index.tensors
    allowed = (ProblemKind.PICKLE_DAMAGED, ProblemKind.MEMORY, ProblemKind.DEADLINE)
    assert all(p.kind in allowed for p in index.problems)


def test_a_bomb_for_metadata_is_one_finding(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "ckpt")
    (folder / ".metadata").write_bytes(BOMBS["memo index, larger"])
    index = read(str(folder), SECONDS)
    assert [p.kind for p in index.problems] == [ProblemKind.MEMORY]


def test_values_may_be_of_any_class(tmp_path: Path) -> None:
    """Honest files name the user's own classes; that is no finding."""
    value = b"\x80\x02}(" + text("args") + b"cmy.project\nConfig\n)\x81}" + text("lr") + b"K\x01sbu."
    (tmp_path / "m.pt").write_bytes(archive({"data.pkl": value, "version": b"3\n"}))
    index = read(str(tmp_path / "m.pt"), SECONDS)
    assert not index.problems
    assert [(g.name, g.trust) for g in index.globals] == [("my.project.Config", Trust.UNKNOWN)]
    assert index.entries[0].type == "my.project.Config"


def test_names_of_torch_pass(tmp_path: Path) -> None:
    from tests.unit.ckpt.making import Tensor

    (tmp_path / "m.pt").write_bytes(torch_file({"w": Tensor("0", (2, 2))}, {"text": "os.system"}))
    index = read(str(tmp_path / "m.pt"), SECONDS)
    assert {g.trust for g in index.globals} == {Trust.TORCH}
    assert not index.problems


def test_pickles_that_hold_nothing(tmp_path: Path) -> None:
    for number, raw in enumerate((b"", b".", b"N", b"\x80\x09N.", pickled({})[:-1])):
        folder = small().write(tmp_path / str(number))
        (folder / ".metadata").write_bytes(raw)
        index = read(str(folder), SECONDS)
        assert [p.kind for p in index.problems] == [ProblemKind.METADATA_DAMAGED], raw


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_bare_pickle_says_what_it_names(tmp_path: Path, protocol: int) -> None:
    """No torch.save file at all: torch.load(weights_only=False) unpickles it before it complains."""
    canary = tmp_path / "canary"
    file = tmp_path / "model.pth"
    file.write_bytes(pickle.dumps({"w": [1.0], "x": Touch(str(canary))}, protocol))
    (found,) = read_here(str(file)).problems
    assert (found.kind, found.harm) == (ProblemKind.PICKLE_HOSTILE, Harm.UNSAFE)
    assert "system" in found.detail
    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder" / "model.pth")
    (found,) = read_here(str(tmp_path / "folder")).problems
    assert found.kind is ProblemKind.PICKLE_HOSTILE and found.path == "model.pth"
    assert not canary.exists()


def test_a_bare_pickle_of_plain_values_is_only_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.pth"
    file.write_bytes(pickle.dumps({"w": [1.0]}, 4))
    assert [p.kind for p in read_here(str(file)).problems] == [ProblemKind.NOT_A_CHECKPOINT]


class Touch:
    """Would run `touch` if it were unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)
