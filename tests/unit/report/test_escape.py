"""Nothing that a machine is called or says reaches a terminal, a CI log or an XML parser as a command."""

from __future__ import annotations

import json
import unicodedata
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_doctor.report import github, junit, text
from fsdp_doctor.report import json as as_json
from fsdp_doctor.report.escape import one_line, to_ascii, unpaired, visible
from fsdp_doctor.report.style import Style
from tests.unit.report.sample import HOSTILE, hostile

ANYTHING = st.text(st.characters(codec=None, categories=None))


def acting(said: str) -> set[str]:
    return {c for c in said if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@pytest.mark.parametrize("style", [Style(), Style(width=20, ascii=True), Style(verbose=True)])
def test_text_is_inert(style: Style) -> None:
    said = text.render(hostile(), style)
    assert not acting(said)
    assert "[bold]markup[/bold]" in said.replace("\n", "") or style.width < 40
    assert not [line for line in said.splitlines()[:-1] if line.startswith(("::", "PASS:"))]


def test_colour_is_only_ours() -> None:
    said = text.render(hostile(), Style(colour=True, verbose=True))
    assert "\x1b[31mred" not in said
    assert "\\x1b[31mred" in said


def test_ascii_is_ascii() -> None:
    text.render(hostile(), Style(ascii=True, verbose=True)).encode("ascii")


def test_github_has_one_command_a_line() -> None:
    said = github.render(hostile())
    assert not acting(said)
    for line in said.splitlines():
        level, _, rest = line[2:].partition(" ")
        properties, found, _ = rest.partition("::")
        assert (line[:2], level in ("error", "warning", "notice"), found) == ("::", True, "::")
        assert all(p.split("=")[0] in ("title", "file", "line") for p in properties.split(","))


def test_junit_parses_back() -> None:
    said = junit.render(hostile())
    root = ET.fromstring(said)
    assert not acting(said)
    assert "]]> <b>&" in "".join(e.get("message", "") for e in root.iter())


def test_json_parses_back() -> None:
    said = as_json.render(hostile())
    said.encode("ascii")
    assert json.loads(said)["results"][0]["found"] == HOSTILE.replace("\ud800", "\ufffd")


@given(ANYTHING)
def test_visible_is_printable(value: str) -> None:
    assert visible(value).isprintable()
    assert one_line(value).isprintable()
    assert to_ascii(visible(value)).isascii()
    unpaired(value).encode("utf-8")


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))))
def test_ordinary_text_stays(value: str) -> None:
    assert visible(value) == one_line(value) == unpaired(value) == value
