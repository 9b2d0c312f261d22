"""A probe's figures for people."""

from __future__ import annotations

import json

from fsdp_doctor.cli.probe_text import render
from fsdp_doctor.probe.report_data import data
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.probe import CollectiveTiming, ProbePlan, ProbeResult, RankMeasurement

MIB = 1 << 20


def result(sizes: int, correct: bool = True) -> ProbeResult:
    ops = ("all_gather", "reduce_scatter", "all_reduce")
    timings = tuple(
        CollectiveTiming(op, (i + 1) * MIB, (2e-3, 3e-3), (1e-3, 2e-3), (1e-5,), correct=correct)
        for op in ops
        for i in range(sizes)
    )
    ranks = tuple(RankMeasurement(r, "node-a", r, collectives=timings, stage="done") for r in range(2))
    return ProbeResult(2, "gloo", ProbePlan("gloo", ops), ranks, torch="2.13.0")


def test_it_fits_on_a_screen_whatever_is_measured() -> None:
    for sizes in (1, 3, 40):
        made = result(sizes)
        lines = render(made, conclude(made), Style(width=100)).splitlines()
        assert len(lines) <= 36 and all(len(line) <= 100 for line in lines)


def test_what_matters_is_there() -> None:
    made = result(2, correct=False)
    text = render(made, conclude(made), Style(width=100))
    assert "2 ranks, gloo on cpu, torch 2.13.0" in text
    assert "all_gather" in text and "2 MiB" in text and "WRONG" in text and "1.50 ms" in text


def test_nothing_measured_is_no_table() -> None:
    made = ProbeResult(1, "nccl", ProbePlan("nccl"), device="cuda")
    assert render(made, conclude(made), Style(width=60)).splitlines()[0] == "1 rank, nccl on cuda"


def test_the_data_are_json_and_name_the_figures() -> None:
    made = result(2)
    told = json.loads(json.dumps(data(made, conclude(made))))
    figure = told["ops"]["all_gather"][str(2 * MIB)]
    assert figure["time_us"]["min"] == 1000.0 and figure["time_us"]["median"] == 1500.0
    assert figure["back_to_back_us"] == 2500.0 and figure["skew_us"] == 1000.0
    assert abs(figure["algbw_gbps"] - 2 * figure["busbw_gbps"]) < 1e-5 and figure["correct"] is True
    assert told["ranks"][1]["think_us"] == 10.0
