"""How a job is described on the command line, and what mistakes in it are answered with."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from fixtures.cases.step import HBM, LLAMA_8B, h200, nodes
from fsdp_doctor.cli.probe_job import parse_units
from fsdp_doctor.cli.probe_text import render
from fsdp_doctor.probe.forecast import forecast
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.step import StepForecast
from tests.unit.cli.conftest import Doctor


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("32x218M,1x262M", (218e6,) * 32 + (262e6,)),
        ("8B/32", (0.25e9,) * 32),
        ("1.5G", (1.5e9,)),
        (" 2x10K , 7 ", (10e3, 10e3, 7.0)),
    ],
)
def test_units(text: str, units: tuple[float, ...]) -> None:
    assert parse_units(text) == pytest.approx(units)


@pytest.mark.parametrize(
    "text",
    ["", "32", "0x1M", "3x", "x3", "1M/0", "10001x1M", "5Q", "-1M", "1e9", "nan", "9" * 30, "999999x1M,"],
)
def test_no_units(text: str) -> None:
    if text == "32":  # one unit of 32 parameters
        assert parse_units(text) == (32.0,)
        return
    with pytest.raises(click.UsageError, match=r"--units"):
        parse_units(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["probe", "--units", "8B/32"], "--tokens"),
        (["probe", "--tokens", "8192"], "--units"),
        (["probe", "--tflops", "400"], "--units and --tokens"),
        (["probe", "--units", "8B/32", "--tokens", "10", "--gpu", "abacus"], "not in the table of GPUs"),
        (["probe", "--units", "8B/32", "--tokens", "10", "--attention", "4096"], "4096x8192"),
        (["probe", "--units", "8B/32", "--tokens", "0"], "--tokens"),
        (["check", "--units", "8B/32", "--tokens", "10", "--profile", "quick"], "--profile quick leaves out"),
        (["check", "--units", "8B/32", "--tokens", "10", "--from", "box.zip"], "--from leaves out"),
    ],
)
def test_mistakes(doctor: Doctor, words: list[str], said: str) -> None:
    done = doctor(*words)
    assert done.status == 2 and done.out == ""
    assert said in " ".join(done.err.split()) and "Traceback" not in done.err


def test_text_of_a_forecast() -> None:
    for result, words in ((h200(), "on 8 ranks"), (nodes(12), "HYBRID_SHARD:")):
        fabric = conclude(result)
        step = forecast(replace(LLAMA_8B, gpu="H200", tokens=4096), result, fabric, HBM)
        assert isinstance(step, StepForecast)
        text = render(result, fabric, Style(), step)
        for said in (
            words,
            "a training step on",
            "communication hides from",
            "inputs: 34 units",
            "fabric:",
            "±20%",
        ):
            assert said in text
        assert "a training step" not in render(result, fabric, Style())
