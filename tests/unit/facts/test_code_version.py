"""Commits are read from the files of real checkouts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fsdp_doctor.facts.code_version import code_version
from fsdp_doctor.facts.recorded import DirectoryTree, MemoryTree, RecordedSource

MANIFEST = b'{"schema": "fsdp-doctor-recording/1"}'


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ("git", *identity, *words), cwd=folder, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_bytes(MANIFEST)
    folder = tmp_path / "root" / "code"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return tmp_path


def read(recording: Path, folder: str) -> str | None:
    return code_version(RecordedSource(DirectoryTree(recording)), folder)


@pytest.mark.parametrize("folder", ["/code", "/code/deep/er"])
def test_branch(checkout: Path, folder: str) -> None:
    assert read(checkout, folder) == git(checkout / "root" / "code", "rev-parse", "HEAD")


def test_packed_and_detached(checkout: Path) -> None:
    code = checkout / "root" / "code"
    commit = git(code, "rev-parse", "HEAD")
    git(code, "pack-refs", "--all")
    assert not (code / ".git" / "refs" / "heads" / "main").exists()
    assert read(checkout, "/code") == commit
    git(code, "checkout", "-q", "--detach")
    assert read(checkout, "/code") == commit


def test_outside_a_checkout(checkout: Path) -> None:
    assert read(checkout, "/") is None
    assert code_version(RecordedSource(MemoryTree({"manifest.json": MANIFEST})), None) is None


def test_a_head_that_leads_out_is_not_followed(checkout: Path) -> None:
    head = checkout / "root" / "code" / ".git" / "HEAD"
    head.write_text("ref: refs/../../../../etc/passwd\n")
    assert read(checkout, "/code") is None
