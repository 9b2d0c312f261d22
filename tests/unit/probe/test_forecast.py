"""What a probe's figures mean for a job: sizes carried over, FLOP rates by their source, hidden or exposed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.cases.step import HBM, LLAMA_8B, h200, nodes
from fixtures.probes import Bench
from fsdp_doctor.probe.forecast import Job, forecast
from fsdp_doctor.probe.report_step import step_data
from fsdp_doctor.probe.step_fabric import Scaled, job_fabric
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.probe import ProbeResult, WorkTiming
from fsdp_doctor.subjects.step import StepForecast
from fsdp_doctor.tables.compute_rates import EXPOSED_WARN, PRODUCT_SHARE, compute_rate

ON_H200 = replace(LLAMA_8B, gpu="H200")


def told(result: ProbeResult, job: Job = ON_H200, memory: int | None = HBM) -> StepForecast:
    found = forecast(job, result, conclude(result), memory)
    assert isinstance(found, StepForecast), found
    return found


def working(result: ProbeResult, flops: float) -> ProbeResult:
    """The result of ranks whose fixed work reached so many FLOP/s."""
    timing = WorkTiming((0.01,) * 20, (), flops=flops * 0.01, device="cuda")
    return replace(result, ranks=tuple(replace(r, work=(timing,)) for r in result.ranks))


def test_hide_point_is_the_formulas() -> None:
    """bytes x FLOP rate / (2 x bandwidth), of (n-1)/n of the bytes over the ring."""
    result = h200(noise=1e-4)
    found = told(result)
    busbw = next(f.busbw for f in conclude(result).figures if f.op == "all_gather" and f.bytes == 256 << 20)
    assert found.hide_forward == pytest.approx(7 / 8 * 2 * 494.5e12 / (2 * busbw * 1e9), rel=0.05)


@pytest.mark.parametrize("factor", [0.3, 0.7, 1.5, 4.0])
def test_exposed_and_hidden_around_the_hide_point(factor: float) -> None:
    found = told(h200())
    there = told(h200(), replace(ON_H200, tokens=found.hide * factor))
    assert (there.full.exposed_share >= EXPOSED_WARN) == (factor < 1)
    assert step_data(there, ON_H200)["communication"] == ("hidden" if factor > 1 else "exposed")
    assert there.full.exposed_low <= there.full.exposed_share <= there.full.exposed_high
    assert there.full.low < there.full.seconds < there.full.high


def test_attention_hides_bytes_too() -> None:
    with_attention = told(h200(), replace(ON_H200, attention=(4096, 8192)))
    assert with_attention.hide < 0.9 * told(h200()).hide


def test_scaling_keeps_the_busbw() -> None:
    """64 ranks instead of 8: (63/64)/(7/8) of the time in bytes, 56 hops more of latency."""
    curve = job_fabric(h200(noise=1e-4), conclude(h200(noise=1e-4)).figures, 8, None)
    assert not isinstance(curve, str)
    measured = curve.full.all_gather
    scaled = Scaled(measured, 64)  # type: ignore[arg-type]
    size = 1 << 30
    assert scaled.seconds(size) == pytest.approx(measured.seconds(size) * 9 / 8 + 56 * 5e-6, rel=0.02)
    assert Scaled(measured, 8).seconds(size) == pytest.approx(measured.seconds(size))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ FLOP rate
def test_measured_rate_comes_before_the_table() -> None:
    found = told(working(h200(), 700e12), LLAMA_8B)
    assert found.rate.flops == pytest.approx(PRODUCT_SHARE * 700e12) and "700 TFLOP/s" in found.rate.basis
    assert found.rate.peak == 989e12 and found.full.mfu is not None


def test_named_gpu_given_rate_and_unknown_ones() -> None:
    result = working(h200(), 700e12)
    assert told(result, replace(LLAMA_8B, gpu="A100")).rate.flops == pytest.approx(0.6 * 312e12)
    given = told(result, replace(LLAMA_8B, tflops=420.0))
    assert given.rate.flops == 420e12 and given.band < told(result, LLAMA_8B).band
    silent = replace(result, ranks=tuple(replace(r, work=(), gpu_name=None) for r in result.ranks))
    unknown = forecast(LLAMA_8B, silent, conclude(silent), HBM)
    assert isinstance(unknown, Unknown) and "FLOP rate" in unknown.reason and "--tflops" in unknown.enable


def test_without_a_known_peak_no_utilisation_is_claimed() -> None:
    cpu = Bench(world=4).measured()
    found = told(cpu, LLAMA_8B)
    assert found.on_cpu and found.full.mfu is None
    assert not any("MFU" in line for line in found.lines) and any("CPU ranks" in line for line in found.lines)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA H20", 148),
        ("NVIDIA GeForce RTX 4090", 165),
        ("h100", 989),
    ],
)
def test_table_of_peaks(name: str, tflops: float) -> None:
    row = compute_rate(name)
    assert row is not None and row.tflops == tflops


@pytest.mark.parametrize("name", [None, "", "AMD Instinct MI300X", "Radeon"])
def test_products_that_are_not_in_it(name: str | None) -> None:
    assert compute_rate(name) is None


# ------------------------------------------------------------------------------- ranks beyond the measured
def test_carried_over_is_said() -> None:
    assert told(h200()).assumptions == ()
    same_node = told(h200(), replace(ON_H200, world_size=4))
    assert same_node.nodes == 1 and "4" in same_node.assumptions[0]
    far = told(h200(), replace(ON_H200, world_size=64))
    assert far.nodes == 8 and far.optimistic and "not measured" in far.assumptions[0] and far.hybrid is None
    given = told(h200(), replace(ON_H200, world_size=64, between=50.0))
    assert not given.optimistic and "50 GB/s busbw between nodes, given" in given.assumptions[0]
    assert given.full.seconds > far.full.seconds
    several = told(nodes(300), replace(ON_H200, world_size=96))
    assert several.nodes == 12 and not several.optimistic and "24 ranks on 3 nodes" in several.assumptions[0]


def test_adapters_of_the_node_stand_in_for_the_network() -> None:
    result = h200()
    linked = replace(
        result, links=tuple(replace(x, nic_gbps=400.0, nics=8, nic_kind="InfiniBand") for x in result.links)
    )
    found = told(linked, replace(ON_H200, world_size=64))
    assert not found.optimistic and "expected of its adapters" in found.assumptions[0]


@pytest.mark.parametrize(("between", "strategy"), [(12, "HYBRID_SHARD"), (300, "FULL_SHARD")])
def test_full_against_hybrid(between: float, strategy: str) -> None:
    for found in (
        told(nodes(between), replace(ON_H200, tokens=4096)),
        told(h200(), replace(ON_H200, tokens=4096, world_size=24, between=float(between))),
    ):
        assert found.strategy == strategy and found.hybrid is not None
        if strategy == "HYBRID_SHARD":
            assert found.hybrid.tokens_per_second > 1.1 * found.full.tokens_per_second


def test_hybrid_needs_room_in_a_node() -> None:
    large = replace(ON_H200, units=(900e6,) * 80)
    found = told(nodes(12), large)
    assert found.hybrid is None and "does not fit" in found.reason
    unknown = told(nodes(12), large, memory=None)
    assert unknown.hybrid is not None and "if 16 bytes per parameter fit" in unknown.reason


def test_a_job_of_one_rank_communicates_nothing() -> None:
    found = told(h200(), replace(ON_H200, world_size=1))
    assert found.hide == 0 and found.full.exposed == pytest.approx(0)
