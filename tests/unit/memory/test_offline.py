"""Which commands reach another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_doctor.memory.child.offline import fetching


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["curl", "-fsSL", "https://example.com/w.pt", "-o", "w.pt"], "curl"),
        ([b"/usr/bin/wget", b"-q", b"https://example.com"], "wget"),
        ([Path("/usr/bin/git"), "clone", "https://example.com/x"], "git"),
        (["git", "-C", "x", "lfs", "pull"], "git-lfs"),
        (["sudo", "env", "A=1", "timeout", "10", "aws", "s3", "cp", "s3://a/b", "."], "aws"),
        (["/bin/sh", "-c", "mkdir -p x && (cd x; wget -q https://example.com/y) || true"], "wget"),
        (["bash", "-lc", "echo 'a|b' | curl -T - https://example.com"], "curl"),
        (["python3", "-m", "pip", "install", "einops"], "pip"),
        (["huggingface-cli", "download", "gpt2"], "huggingface-cli"),
        (["rsync", "-a", "host:/data", "."], "rsync"),
    ],
)
def test_programs_that_fetch(words: object, program: str) -> None:
    assert fetching(words) == program


@pytest.mark.parametrize(
    "words",
    [
        ["git", "rev-parse", "HEAD"],
        ["git", "log", "--grep", "curl https://example.com"],
        ["nvidia-smi", "-q"],
        ["curl", "--version"],
        ["curl", "http://localhost:8080/metrics"],
        ["sh", "-c", "echo curl https://example.com"],
        ["rsync", "-a", "x/", "y/"],
        ["pip", "list"],
        ["python", "-c", "import curl"],
        ["sh", "-c", "echo 'not closed"],
        [],
        None,
        "",
    ],
)
def test_programs_that_do_not(words: object) -> None:
    assert fetching(words) == ""


def test_the_text_of_a_shell() -> None:
    assert fetching(b"cd x; curl -O https://example.com/y", shell=True) == "curl"
    assert fetching("ls | wc -l", shell=True) == ""
