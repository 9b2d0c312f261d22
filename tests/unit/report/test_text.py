"""Text keeps every word at any width, and its commands can be pasted."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_doctor.findings import Fix, Report, Status, Subject
from fsdp_doctor.report.describe import numbers, subject_words
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.report.text import render
from tests.unit.report.sample import STARTED, TOOL, everything, result


def squeezed(said: str) -> str:
    return re.sub(r"\s|\\\n", "", said)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 200])
def test_keeps_words_and_width(width: int) -> None:
    said = render(everything(), Style(width=width, verbose=True))
    for r in everything().results:
        assert squeezed(r.found) in squeezed(said)
        assert squeezed(r.why if r.suppressed is None else "") in squeezed(said)
    prose = [line for line in said.splitlines() if "quoted value" not in line]
    assert max(map(len, prose)) <= max(width, 40)


def commands_of(said: str) -> list[str]:
    joined = said.replace(" \\\n", " ")
    return [line.strip()[2:] for line in joined.splitlines() if line.strip().startswith("$ ")]


@given(st.lists(st.text("ab'\" \\-=", min_size=1, max_size=30), min_size=1), st.integers(20, 80))
def test_commands_can_be_pasted(words: list[str], width: int) -> None:
    command = shlex.join(words)
    page = Page(Style(width=width))
    page.command(command)
    pasted = "\n".join(line.strip() for line in page.text().splitlines()).removeprefix("$ ")
    assert shlex.split(pasted.replace("\\\n", "")) == words


def test_order_and_last_line() -> None:
    said = render(everything(), Style()).splitlines()
    heads = [line.split()[1] for line in said if re.match(r"\S (FAIL|ERROR|WARN|INFO|NOT|SUPPRESSED) ", line)]
    assert heads == ["FAIL", "ERROR", "WARN", "INFO", "NOT", "SUPPRESSED"]
    assert " ".join(line.strip() for line in said[-2:]) == (
        "FAIL: 1 failed, 1 error, 1 not judged, 1 warning, 1 note, 2 passed, 2 skipped, 1 suppressed "
        "in 1.2 s (exit 1: at least one check failed)"
    )


def test_many_reasons_are_folded() -> None:
    skips = tuple(result(f"GPU{n:03d}", "t", Status.SKIP, f"reason {n}") for n in range(9))
    report = Report("check", skips, TOOL, STARTED, 0.0)
    assert "4 more reasons, shown by --verbose: GPU005-GPU008" in render(report, Style())
    assert "reason 8" in render(report, Style(verbose=True))


def test_strict_says_so() -> None:
    report = replace(everything(), strict=True, unjudged=(), results=everything().results[5:6])
    assert render(report, Style()).endswith("(exit 1: --strict counts warnings as failures)\n")


def test_subjects() -> None:
    assert numbers((9, 0, 2, 1, 4, 5)) == "0-2, 4, 5, 9"
    assert subject_words(Subject(host="a,b,c,d,e,f", rank=3, gpu=(0, 1, 2))) == (
        "hosts a, b, c, d and 2 more; rank 3; GPUs 0-2"
    )
    assert subject_words(
        Subject(file="x.py", line=0, tensor="w", variable="V", path="/p", device="eth0")
    ) == ("device eth0; variable V; path /p; x.py:0; tensor w")


def test_who_may_fix() -> None:
    fix = Fix("Do it")
    said = render(
        Report("check", (result("GPU001", "t", Status.FAIL, "f", fix=fix),), TOOL, STARTED, 0.0), Style()
    )
    assert "fix       Do it\n" in said
