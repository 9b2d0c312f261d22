"""The step model against published training runs, within the errors that it states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.probes import Bench
from fsdp_doctor.probe.curve import Line
from fsdp_doctor.probe.figures import curves, figures
from fsdp_doctor.probe.step_choice import choose
from fsdp_doctor.probe.step_inverse import calibrated, implied_busbw
from fsdp_doctor.probe.step_model import StepInputs, Transfers, hide_tokens, predict
from fsdp_doctor.probe.step_words import mfu_words, summary

H100, A100, B200 = 989e12, 312e12, 2250e12


def wire(ranks: int, gbps: float, replicas: int = 1, between: float | None = None) -> Transfers:
    reduce = None if between is None else Line("all_reduce", replicas, 30e-6, between)
    return Transfers(
        Line("all_gather", ranks, 30e-6, gbps), Line("reduce_scatter", ranks, 30e-6, gbps), reduce
    )


def model(
    parameters: float,
    units: int,
    tokens: float,
    peak: float,
    ranks: int,
    *,
    recompute: float = 0.0,
    hidden: int = 0,
    sequence: int = 0,
) -> StepInputs:
    return StepInputs(
        (parameters / units,) * units, tokens, peak, 0.5, ranks, recompute=recompute, attention_flops=4.0 * hidden * sequence
    )  # fmt: skip


def rate(inputs: StepInputs, transfers: Transfers) -> float:
    return predict(inputs, transfers).tokens_per_second


# ------------------------------------------------------------------------------------- published runs
@pytest.mark.parametrize(("eight", "published", "error"), [(5762, 5605, 0.03), (6667, 6514, 0.025)])
@pytest.mark.parametrize("gbps", [190, 330])
def test_llama_8b_from_8_to_128_h100(eight: float, published: float, error: float, gbps: float) -> None:
    base = model(8.03e9, 32, 16384, H100, 8, recompute=0.3, hidden=4096, sequence=8192)
    fitted = calibrated(base, wire(8, 340), eight)
    assert rate(fitted, wire(8, 340)) == pytest.approx(eight, rel=1e-4)
    assert rate(replace(fitted, shard_size=128), wire(128, gbps)) == pytest.approx(published, rel=error)


@pytest.mark.parametrize("gbps", [40, 90, 150])
def test_llama_70b_on_64_a100_from_the_8b_run(gbps: float) -> None:
    fitted = calibrated(
        model(8.03e9, 32, 8192, A100, 64, recompute=0.3, hidden=4096, sequence=8192), wire(64, 150), 2973
    )
    large = model(70.6e9, 80, 8192, A100, 64, recompute=1.0, hidden=8192, sequence=8192)
    assert rate(replace(large, efficiency=fitted.efficiency), wire(64, gbps)) == pytest.approx(331, rel=0.08)


@pytest.mark.parametrize(
    ("parameters", "units", "hidden", "recompute", "published", "error"),
    [
        (6.74e9, 32, 4096, 0.0, 3700, 0.02),
        (13.0e9, 40, 5120, 0.3, 1800, 0.02),
        (33.7e9, 48, 8192, 1.0, 700, 0.17),
    ],
)
@pytest.mark.parametrize("gbps", [20, 40])
def test_fms_on_128_a100(
    parameters: float, units: int, hidden: int, recompute: float, published: float, error: float, gbps: float
) -> None:
    fitted = calibrated(model(6.74e9, 32, 8192, A100, 8, hidden=4096, sequence=4096), wire(8, 225), 3700)
    inputs = model(parameters, units, 8192, A100, 128, recompute=recompute, hidden=hidden, sequence=4096)
    found = rate(replace(inputs, efficiency=fitted.efficiency), wire(128, gbps))
    assert found == pytest.approx(published, rel=error)


def test_a_run_that_scales_badly_tells_the_bandwidth_it_had() -> None:
    """7B on H200: 93 % of linear on one node of four, 53 % on two nodes."""
    fitted = calibrated(
        model(8.0e9, 32, 16384, H100, 4, recompute=1.0, hidden=4096, sequence=4096), wire(4, 340), 38983 / 4
    )
    two = replace(fitted, shard_size=8)
    assert rate(two, wire(8, 25)) >= 0.9 * 38983 / 4
    implied = implied_busbw(two, lambda gbps: wire(8, gbps), 38983 / 4 * 53 / 93)
    assert implied == pytest.approx(14.4, abs=0.3)


@pytest.mark.parametrize(
    ("between", "full", "hybrid"),
    [
        (5, 545, 1413),
        (12, 1304, 3088),
        (25, 2703, 5518),
        (50, 5355, 8666),
        (190, 10882, 10875),
        (330, 10933, 10903),
    ],
)
def test_full_against_hybrid_over_two_nodes(between: float, full: float, hybrid: float) -> None:
    inputs = replace(model(6.74e9, 32, 4096, H100, 16), efficiency=0.45)
    inside = wire(8, 345, 2, between / 8)
    assert rate(inputs, wire(16, between)) == pytest.approx(full, rel=1e-3)
    assert rate(replace(inputs, shard_size=8, replicas=2), inside) == pytest.approx(hybrid, rel=1e-3)
    choice = choose(inputs, wire(16, between), inside, 2, 6.74e9 * 16, 60 * 2**30)
    assert choice.strategy == ("HYBRID_SHARD" if between <= 50 else "FULL_SHARD")


def test_hybrid_needs_the_memory() -> None:
    inputs = replace(model(70e9, 80, 4096, H100, 16), efficiency=0.45)
    choice = choose(inputs, wire(16, 25), wire(8, 345, 2, 3), 2, 70e9 * 16, 60 * 2**30)
    assert choice.strategy == "FULL_SHARD" and choice.hybrid is None and "does not fit" in choice.reason
    assert choose(inputs, wire(16, 25), wire(8, 345), 1, 0, 1).reason == "one node"


# ----------------------------------------------------------------------------------------- hide point
@pytest.mark.parametrize(
    ("peak", "efficiency", "gbps", "tokens", "with_fp32"),
    [
        (A100, 0.60, 225, 830, 1250),
        (H100, 0.50, 345, 1430, 2150),
        (B200, 0.45, 670, 1510, 2270),
        (H100, 0.50, 190, 2600, 3900),
        (H100, 0.50, 340, 1450, 2180),
        (A100, 0.60, 40, 4680, 7020),
        (362e12, 0.45, 20, 8150, 12220),
        (165e12, 0.50, 15, 5500, 8250),
        (H100, 0.50, 10, 49_000, 74_000),
    ],
)
def test_tokens_that_hide_communication(
    peak: float, efficiency: float, gbps: float, tokens: float, with_fp32: float
) -> None:
    inputs = replace(model(8e9, 32, 4096, peak, 64), efficiency=efficiency)
    found = hide_tokens(inputs, gbps, gbps)
    assert found.forward == pytest.approx(tokens, rel=0.01) and found.backward == pytest.approx(
        tokens, rel=0.01
    )
    assert hide_tokens(replace(inputs, reduce_bytes=4), gbps, gbps).backward == pytest.approx(
        with_fp32, rel=0.01
    )


@pytest.mark.parametrize("units", [16, 64])
def test_the_hide_point_is_where_exposure_ends(units: int) -> None:
    inputs = replace(model(8e9, units, 1, H100, 1024), efficiency=0.5)
    transfers = Transfers(Line("all_gather", 1024, 0.0, 100), Line("reduce_scatter", 1024, 0.0, 100))
    edge = hide_tokens(inputs, 100, 100).both
    first_and_last = 2 * Line("all_gather", 1024, 0.0, 100).seconds(2 * 8e9 / units)
    above = predict(replace(inputs, tokens=1.01 * edge), transfers)
    below = predict(replace(inputs, tokens=0.9 * edge), transfers)
    assert above.exposed == pytest.approx(first_and_last, rel=1e-6)
    assert below.exposed > 1.5 * first_and_last


# --------------------------------------------------------------------------------------- single effects
BASE = replace(model(8e9, 32, 4096, H100, 16), efficiency=0.45)


def test_without_reshard_backward_gathers_nothing() -> None:
    kept = predict(replace(BASE, reshard=False), wire(16, 30))
    assert kept.seconds < 0.85 * predict(BASE, wire(16, 30)).seconds


def test_a_larger_microbatch_beats_accumulation() -> None:
    accumulated = predict(replace(BASE, microsteps=4), wire(16, 30))
    larger = predict(replace(BASE, tokens=4 * 4096), wire(16, 30))
    assert larger.tokens_per_second > 1.2 * accumulated.tokens_per_second


def test_without_reshard_accumulation_gathers_once() -> None:
    one = predict(replace(BASE, reshard=False), wire(16, 30))
    four = predict(replace(BASE, reshard=False, microsteps=4), wire(16, 30))
    assert four.seconds - one.seconds == pytest.approx(3 * one.compute)


def test_optimizer_data_and_launch() -> None:
    plain = predict(BASE, wire(16, 300))
    optimizer = predict(replace(BASE, optimizer_bytes=28, memory_gbps=3000), wire(16, 300))
    assert optimizer.seconds - plain.seconds == pytest.approx(28 * 8e9 / 16 / 3e12)
    starved = predict(replace(BASE, data_seconds=5.0), wire(16, 300))
    assert starved.seconds == pytest.approx(5.0) and starved.data > 3
    launched = predict(replace(BASE, tokens=1, launch_seconds=0.002), wire(16, 300))
    assert launched.compute >= 32 * 3 * 0.002


def test_one_rank_communicates_nothing() -> None:
    alone = predict(replace(BASE, shard_size=1), wire(1, 1))
    assert alone.exposed == pytest.approx(0) and alone.hidden == pytest.approx(0)


@pytest.mark.parametrize(
    "broken", [{"units": ()}, {"units": (0.0,)}, {"tokens": 0}, {"efficiency": 0}, {"shard_size": 0}]
)
def test_no_step(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"greater than 0|at least one unit"):
        predict(replace(BASE, **broken), wire(16, 100))  # type: ignore[arg-type]


def test_measured_curves_go_in() -> None:
    result = Bench(world=8, device="cuda").measured()
    measured = curves(figures(result))
    step = predict(replace(BASE, shard_size=8), Transfers(measured["all_gather"], measured["reduce_scatter"]))
    assumed = predict(replace(BASE, shard_size=8), wire(8, 362))
    assert step.seconds == pytest.approx(assumed.seconds, rel=0.05)


def test_summary_prints_inputs_and_band() -> None:
    step = predict(BASE, wire(16, 50))
    text = "\n".join(summary(BASE, step, hide_tokens(BASE, 50, 50)))
    for words in (
        "±20%",
        "32 units",
        "8B parameters",
        "4096 tokens",
        "989 TFLOP/s x 0.45",
        "not hidden",
        "exposed",
    ):
        assert words in text
    assert "hidden" in "\n".join(summary(BASE, predict(BASE, wire(16, 400)), hide_tokens(BASE, 400, 400)))


@pytest.mark.parametrize(
    ("mfu", "words"), [(0.5, "good"), (0.4, "normal"), (0.2, "exposed"), (0.1, "broken")]
)
def test_mfu_words(mfu: float, words: str) -> None:
    assert words in mfu_words(mfu)
