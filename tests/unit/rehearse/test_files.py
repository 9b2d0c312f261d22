"""Writes that go elsewhere: what is read back, what is noted, and what of the real files stays as it was."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_doctor.memory.replay import START

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import start
start.load("rehearsal.notes")
files = start.load("rehearsal.files")
notes = sys.modules[files.__name__.replace("files", "notes")].Notes()
own = {own!r}
import os
os.makedirs(own + "/written")
overlay = files.Overlay(own + "/written", own, notes)
files.install(overlay)
"""


@pytest.fixture(scope="module")
def program() -> str:
    pytest.importorskip("torch")
    return PROGRAM


def run(program: str, tmp_path: Path, body: str) -> str:
    own, out = tmp_path / "own", tmp_path / "out"
    own.mkdir()
    out.mkdir(exist_ok=True)
    text = program.format(folder=str(START.parent), own=str(own)) + f"out = {str(out)!r}\n" + body
    done = subprocess.run(
        [sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BODY = """
import glob, pathlib, shutil, sqlite3, tempfile
import pytest

(pathlib.Path(out) / "new").mkdir()
open(out + "/new/a", "w").write("1")
assert open(out + "/new/a").read() == "1" and os.path.getsize(out + "/new/a") == 1
assert sorted(os.listdir(out)) == ["log", "new", "tree"]
with open(out + "/log", "a") as f:
    f.write("b")
assert open(out + "/log").read() == "ab"
with open(out + "/log", "r+") as f:
    f.write("c")
assert open(out + "/log").read() == "cb"
os.rename(out + "/new/a", out + "/new/b")
assert os.listdir(out + "/new") == ["b"]
os.rename(out + "/tree/kept", out + "/moved")
assert not os.path.exists(out + "/tree/kept") and open(out + "/moved").read() == "k"
assert [e.name for e in os.scandir(out + "/tree")] == ["deep"]
shutil.rmtree(out + "/tree")
assert not os.path.exists(out + "/tree/deep/f") and not os.path.isdir(out + "/tree")
with pytest.raises(FileNotFoundError):
    open(out + "/tree/deep/f")
os.makedirs(out + "/tree/again")
assert os.listdir(out + "/tree") == ["again"]
pathlib.Path(out, "tree", "step").touch()
pathlib.Path(out, "tree", "latest").symlink_to("step")
assert pathlib.Path(out, "tree", "latest").exists()
with tempfile.NamedTemporaryFile(dir=out + "/tree", delete=False) as f:
    f.write(b"t")
assert open(f.name).read() == "t" and os.path.dirname(f.name) == out + "/tree"
assert not any(n["path"] == out + "/tree" and n["how"] == "file" for n in notes.paths())
database = sqlite3.connect(out + "/runs.db")
database.execute("create table steps (n int)")
database.commit()
assert os.path.getsize(out + "/runs.db")
with pytest.raises(FileExistsError):
    os.mkdir(out)
with pytest.raises(FileNotFoundError):
    open(out + "/nowhere/x", "w")
with pytest.raises(FileNotFoundError):
    os.remove(out + "/nothing")
os.remove(out + "/log")
assert not os.path.exists(out + "/log")
os.chmod(out + "/moved", 0o600)
shutil.copytree(out + "/new", out + "/copy")
assert glob.glob(out + "/copy/*") == [out + "/copy/b"] or os.listdir(out + "/copy") == ["b"]
print("\\n".join(sorted({n["how"] + " " + os.path.relpath(n["path"], out) for n in notes.paths()})))
"""


def test_scripts_see_their_writes_and_nobody_else_does(program: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "tree" / "deep").mkdir(parents=True)
    (out / "tree" / "deep" / "f").write_text("f")
    (out / "tree" / "kept").write_text("k")
    (out / "log").write_text("a")
    said = run(program, tmp_path, BODY).splitlines()
    assert {"file log", "file new/a", "folder new", "removed folder tree", "removed log"} <= set(said)
    assert (out / "log").read_text() == "a" and (out / "tree" / "deep" / "f").read_text() == "f"
    assert (out / "tree" / "kept").read_text() == "k" and sorted(os.listdir(out)) == ["log", "tree"]


def test_a_large_file_is_not_copied_for_a_line(program: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / "large", "wb") as file:
        file.truncate(65 << 20)
    run(program, tmp_path, 'import pytest\nwith pytest.raises(OSError):\n    open(out + "/large", "a")\n')


def sandbox() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sandbox", START.parent / "rehearsal" / "sandbox.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFINED = """
import os, subprocess, sys
sys.path.insert(0, {folder!r})
import sandbox
why = sandbox.confine({own!r})
if why is not None:
    print(why)
    raise SystemExit(0)
open({own!r} + "/inside", "w").write("x")
os.rename({own!r} + "/inside", {own!r} + "/renamed")
open("/dev/null", "w").write("x")
for act in (lambda: open({out!r} + "/x", "w"), lambda: os.remove({out!r} + "/kept"), lambda: os.mkdir({out!r} + "/d")):
    try:
        act()
    except PermissionError:
        continue
    raise AssertionError("written")
assert subprocess.run(["rm", "-f", {out!r} + "/kept"], stderr=subprocess.DEVNULL).returncode
assert open({out!r} + "/kept").read() == "k"
print("confined")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_the_kernel_keeps_programs_from_writing(tmp_path: Path) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    own.mkdir()
    out.mkdir()
    (out / "kept").write_text("k")
    text = CONFINED.format(folder=str(START.parent / "rehearsal"), own=str(own), out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "confined":
        pytest.skip(done.stdout.strip())
    assert (out / "kept").read_text() == "k" and os.listdir(out) == ["kept"]


def test_a_machine_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sandbox()
    monkeypatch.setattr(module.platform, "machine", lambda: "riscv64")
    assert module.confine("/tmp") == "this system has no Landlock"
