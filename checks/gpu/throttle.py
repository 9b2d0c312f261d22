"""Clocks that the GPU has taken back, and how close it is to doing so."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import unanswered
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_thresholds import MARGIN_FAIL, MARGIN_WARN
from fsdp_doctor.tables.nvml_codes import (
    CLOCK_HW_THERMAL,
    CLOCK_IDLE,
    CLOCK_POWER_BRAKE,
    CLOCK_POWER_CAP,
    CLOCK_SW_THERMAL,
    HARDWARE_SLOWDOWNS,
)

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
MARGIN = "nvmlDeviceGetMarginTemperature"
COOLING = Fix(
    "Check fans, air flow, coolant and inlet temperature of this GPU, and compare it with its neighbours",
    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK",
    Risk.SAFE,
    Owner.HARDWARE,
)
POWER = Fix(
    "Check the power supplies and cables: the board's power brake signal is asserted from outside",
    "nvidia-smi -q -d PERFORMANCE,POWER",
    Risk.SAFE,
    Owner.HARDWARE,
)
SLOWED = sum(HARDWARE_SLOWDOWNS)


def _state(gpu: Gpu) -> str:
    parts = []
    if gpu.temperature is not None:
        parts.append(f"{gpu.temperature} C")
    if gpu.clock_sm is not None and gpu.clock_sm_max:
        parts.append(f"SM clock {gpu.clock_sm} of {gpu.clock_sm_max} MHz")
    return f"GPU {gpu.index}: {', '.join(parts)}" if parts else f"GPU {gpu.index}"


@check("GPU021", Row.SLOW, needs=(Gpus,), tags=("gpu", "hardware", "clocks"))
def slowdown(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU is throttled now.

    What: reads the clock event reasons of this moment: hardware slowdown, hardware thermal slowdown, power
        brake, and the driver's own thermal slowdown. The power cap is normal under load.
    Why: a throttled GPU runs at half its clock or less. FSDP waits for the slowest rank in every
        all-gather, so the whole job runs at that speed.
    Fix: cooling for thermal reasons, power supply for the power brake.
    Sources: NVML API reference (clocks event reasons); gpud hw-slowdown; NVIDIA GPU debug guidelines.
    """
    gpus = facts[Gpus].present
    known = [(g, g.clocks_event_reasons) for g in gpus if g.clocks_event_reasons is not None]
    if not known:
        yield unanswered(gpus, REASONS, "the reason for the clocks")
        return
    hard = by_value((g, r & SLOWED) for g, r in known if r & SLOWED)
    for bits, group in hard.items():
        names = ", ".join(name for bit, name in HARDWARE_SLOWDOWNS.items() if bits & bit)
        yield fail(
            f"{gpu_words(group)} throttled: {names} ({'; '.join(_state(g) for g in group)})",
            "no hardware slowdown",
            subject=gpu_subject(group),
            fix=POWER if bits & CLOCK_POWER_BRAKE and not bits & CLOCK_HW_THERMAL else COOLING,
            evidence=(Evidence(REASONS, hex(bits)),),
        )
    warm = [g for g, r in known if r & CLOCK_SW_THERMAL and not r & SLOWED]
    if warm:
        yield warn(
            f"{gpu_words(warm)}: SW thermal slowdown ({'; '.join(_state(g) for g in warm)})",
            "no thermal slowdown",
            subject=gpu_subject(warm),
            fix=COOLING,
        )
    capped = [g for g, r in known if r & CLOCK_POWER_CAP and not r & (SLOWED | CLOCK_SW_THERMAL)]
    if capped:
        yield info(f"{gpu_words(capped)} at the power cap, as under full load", subject=gpu_subject(capped))
    if not hard and not warm and not capped:
        yield ok(f"no slowdown on {counted(known)}")


def margin(gpu: Gpu) -> int | None:
    """Degrees to the slowdown temperature, as NVML says or by difference."""
    if gpu.temperature_margin is not None:
        return gpu.temperature_margin
    if gpu.temperature is not None and gpu.temperature_slowdown:
        return gpu.temperature_slowdown - gpu.temperature
    return None


@check("GPU022", Row.SLOW, needs=(Gpus,), tags=("gpu", "hardware", "temperature"))
def temperature(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU is close to its slowdown temperature.

    What: reads the temperature margin, or the difference to the slowdown threshold. A GPU that is
        throttled already is reported for that and not here.
    Why: a GPU that is this warm before the run will throttle in it, and every step waits for it.
    Fix: improve the cooling before the run.
    Sources: NVML API reference (margin temperature); gpud temperature component.
    """
    gpus = facts[Gpus].present
    known = [(g, m) for g in gpus if (m := margin(g)) is not None]
    if not known:
        yield unanswered(gpus, MARGIN, "the temperature margin")
        return
    near = 0
    for g, m in known:
        reasons = g.clocks_event_reasons or 0
        if m > MARGIN_WARN or reasons & (SLOWED | CLOCK_SW_THERMAL):
            continue
        near += 1
        at_rest = bool(reasons & CLOCK_IDLE)
        say = fail if m <= MARGIN_FAIL and at_rest else warn
        yield say(
            f"GPU {g.index} is {m} C below its slowdown temperature"
            + (f" at {g.temperature} C" if g.temperature is not None else "")
            + (" while idle" if at_rest else ""),
            f"more than {MARGIN_WARN} C",
            subject=gpu_subject([g]),
            fix=COOLING,
        )
    if not near:
        yield ok(f"at least {min(m for _, m in known)} C to the slowdown temperature on {counted(known)}")
