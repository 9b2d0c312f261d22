"""Each renderer's output, compared with a file. `UPDATE_GOLDEN=1 pytest tests/unit/report` rewrites them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_doctor.failure_table import FAILURE_TABLE
from fsdp_doctor.findings import Report
from fsdp_doctor.report import catalogue, github, json, junit, text
from fsdp_doctor.report.style import Style
from tests.unit.report.sample import everything

GOLDEN = Path(__file__).parents[2] / "golden"
STRICT = replace(everything(), strict=True)
ONLY_WARNINGS = replace(
    STRICT, results=tuple(r for r in STRICT.results if r.code in ("ENV001", "VAR001")), unjudged=()
)
OUTPUTS = {
    "check.txt": lambda: text.render(everything(), Style()),
    "check-verbose.txt": lambda: text.render(everything(), Style(verbose=True)),
    "check-40-columns.txt": lambda: text.render(everything(), Style(width=40)),
    "check-ascii.txt": lambda: text.render(everything(), Style(ascii=True)),
    "check-colour.txt": lambda: text.render(everything(), Style(colour=True)),
    "check.json": lambda: json.render(everything()),
    "check.junit.xml": lambda: junit.render(everything()),
    "check-strict.junit.xml": lambda: junit.render(ONLY_WARNINGS),
    "check.github.txt": lambda: github.render(everything()),
    "check-strict.github.txt": lambda: github.render(ONLY_WARNINGS),
    "nothing.txt": lambda: text.render(Report("check", (), {"version": "1"}, "", 0.0), Style()),
    "table.txt": lambda: catalogue.table_text(FAILURE_TABLE, Style()),
    "table-40-columns.txt": lambda: catalogue.table_text(FAILURE_TABLE, Style(width=40)),
    "table.md": lambda: catalogue.table_markdown(FAILURE_TABLE),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_output(name: str) -> None:
    said = OUTPUTS[name]()
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(said, encoding="utf-8", newline="\n")
    assert said == file.read_text(encoding="utf-8")


def test_no_stale_files() -> None:
    assert {p.name for p in GOLDEN.iterdir()} == set(OUTPUTS)
