"""Which file configures, what it may say, and what the command line overrides."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from fsdp_doctor.config import Config, ConfigError, find, load
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.engine.suppress import Suppression

FULL = """
select = ["GPU", "NET001"]
ignore = "GPU004"
strict = true
format = "json"
deadline = 30
profile = "quick"
nproc = 8
ckpt = "runs/ckpt"

[[suppress]]
code = "sto"
reason = " one node "
host = "node-a"
until = 2027-01-31

[[suppress]]
code = "GPU001"
reason = "x"
until = "2027-02-01"
"""


def write(folder: Path, text: str, name: str = "fsdp-doctor.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_everything(tmp_path: Path) -> None:
    file = write(tmp_path, FULL)
    assert load(None, tmp_path) == Config(
        file=file,
        select=("GPU", "NET001"),
        ignore=("GPU004",),
        strict=True,
        format="json",
        deadline=30.0,
        profile=Profile.QUICK,
        nproc=8,
        ckpt=str(tmp_path / "runs/ckpt"),
        suppressions=(
            Suppression("STO", "one node", "node-a", date(2027, 1, 31)),
            Suppression("GPU001", "x", None, date(2027, 2, 1)),
        ),
    )


def test_pyproject_and_nested_table(tmp_path: Path) -> None:
    write(
        tmp_path,
        "[tool.fsdp-doctor]\nnproc = 2\n[[tool.fsdp-doctor.suppress]]\ncode='A'\nreason='b'",
        "pyproject.toml",
    )
    assert (load(None, tmp_path).nproc, len(load(None, tmp_path).suppressions)) == (2, 1)
    write(tmp_path, "[tool.fsdp-doctor]\nnproc = 3")
    assert load(None, tmp_path).nproc == 3


def test_search_ends_at_the_repository(tmp_path: Path) -> None:
    write(tmp_path, "nproc = 1")
    inner = tmp_path / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    assert find(inner) is None
    (tmp_path / "repo" / ".git").mkdir()
    assert find(inner) is None
    mine = write(tmp_path / "repo", "[tool.fsdp-doctor]", "pyproject.toml")
    assert find(inner) == mine
    write(tmp_path / "repo" / "a", "[tool.other]", "pyproject.toml")
    assert find(inner) == mine
    nearer = write(tmp_path / "repo" / "a", "")
    assert find(inner) == nearer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slect = []", "unknown key 'slect'; did you mean 'select'"),
        ("xyz = 1", "unknown key 'xyz'; known: select"),
        ("[[suppress]]\ncode='A'\nreson='x'", "unknown key 'suppress.reson'; did you mean 'reason'"),
        ("[[suppress]]\ncode='A'", "needs a code and a reason"),
        ("[[suppress]]\ncode='A'\nreason=' '", "reason must be text"),
        ("[[suppress]]\ncode='A'\nreason='b'\nuntil='soon'", "until must be a date"),
        ("[[suppress]]\ncode='A'\nreason='b'\nuntil=3", "until must be a date"),
        ("suppress = 1", "suppress must be an array"),
        ("nproc = true", "nproc must be a whole number"),
        ("nproc = 0", "nproc must be"),
        ("nproc = 4097", "nproc must be a whole number from 1 to 4096"),
        ("deadline = -1", "deadline must be"),
        ("deadline = nan", "deadline must be"),
        ("deadline = 1e9", "deadline must be"),
        ("deadline = inf", "deadline must be"),
        ("strict = 'yes'", "strict must be true or false"),
        ("format = 'yaml'", "format must be one of text"),
        ("profile = 'fast'", "profile must be one of quick"),
        ("select = [1]", "select must be a list"),
        ("nproc = \nstrict = true", "line 1"),
        ("[tool]\nfsdp-doctor = 1", "is not a table"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(None, tmp_path)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml", tmp_path)
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not TOML text"):
        load(tmp_path / "x.toml", tmp_path)
