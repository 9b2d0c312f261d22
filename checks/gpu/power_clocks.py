"""Limits that someone has set below what the board was built for."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import ids, setting, unanswered
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_products import product
from fsdp_doctor.tables.gpu_thresholds import CLOCK_FRACTION, POWER_FAIL_FRACTION, POWER_TOLERANCE_MW
from fsdp_doctor.tables.nvml_codes import CLOCK_IDLE, CLOCK_SETTING

LIMIT = "nvmlDeviceGetEnforcedPowerLimit"
CLOCK = "nvmlDeviceGetApplicationsClock"


@check("GPU023", Row.SLOW, needs=(Gpus,), tags=("gpu", "power", "setting"))
def power_limit(facts: Facts, options: Options) -> Iterator[Finding]:
    """A power limit is below the board's default.

    What: compares the enforced power limit of each GPU with the default of its board.
    Why: matrix work runs into the limit first: below 80 % of the default a data-centre GPU loses much of
        its clock, and one capped GPU slows all ranks.
    Fix: set the limit back to the default, if the cap is not wanted.
    Sources: nvidia-smi documentation (-pl); NVML API reference (power management limits).
    """
    gpus = facts[Gpus].present
    known = [(g, g.power_limit, g.power_default) for g in gpus if g.power_limit and g.power_default]
    if not known:
        yield unanswered(gpus, LIMIT, "the power limit")
        return
    low = [(g, (limit, default)) for g, limit, default in known if limit + POWER_TOLERANCE_MW < default]
    for (limit, default), group in by_value(low).items():
        made = product(group[0].name)
        serves = made is None or made.datacenter
        say = fail if limit < POWER_FAIL_FRACTION * default and serves else warn
        yield say(
            f"{gpu_words(group)}: power limit {limit // 1000} W, {100 * limit // default} % of the default",
            f"the default of {default // 1000} W",
            subject=gpu_subject(group),
            fix=setting(
                "Set the limit to the default", f"sudo nvidia-smi -i {ids(group)} -pl {default // 1000}"
            ),
        )
    if not low:
        yield ok(f"{counted(known)} at their default power limit or above")


def _expected(gpu: Gpu) -> int | None:
    """The application clock that the board comes with; its maximum where NVML gives no default."""
    return gpu.clock_sm_app_default or gpu.clock_sm_max


def _lowered(gpu: Gpu) -> bool:
    expected = _expected(gpu)
    return bool(gpu.clock_sm_app and expected and gpu.clock_sm_app < CLOCK_FRACTION * expected)


def _held(gpu: Gpu) -> bool:
    """The driver says that a setting holds the clock down, on a board whose default is the maximum."""
    reasons, top = gpu.clocks_event_reasons, gpu.clock_sm_max
    if reasons is None or not top or gpu.clock_sm is None or reasons & CLOCK_IDLE:
        return False
    default = gpu.clock_sm_app_default
    if default is not None and default < CLOCK_FRACTION * top:
        return False
    return bool(reasons & CLOCK_SETTING) and gpu.clock_sm < CLOCK_FRACTION * top


@check("GPU024", Row.SLOW, needs=(Gpus,), tags=("gpu", "clocks", "setting"))
def locked_clocks(facts: Facts, options: Options) -> Iterator[Finding]:
    """Clocks are set below what the GPU can do.

    What: compares the application clock with its default (or the maximum), and looks whether the driver
        names a clock setting as the reason for the present clock. The clock of an idle GPU is never
        judged.
    Why: someone locked the clocks, often for a benchmark, and every run since is slower.
    Fix: reset the application clocks and the locked clocks.
    Sources: nvidia-smi documentation (-rac, -rgc); Meta GCM clock check.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.clock_sm_app is not None or g.clocks_event_reasons is not None]
    if not known:
        yield unanswered(gpus, CLOCK, "the application clock")
        return
    low = [(g, (g.clock_sm_app, _expected(g))) for g in known if _lowered(g)]
    for (clock, expected), group in by_value(low).items():
        yield warn(
            f"{gpu_words(group)}: application clock {clock} MHz",
            f"{expected} MHz",
            subject=gpu_subject(group),
            fix=setting("Reset the application clocks", f"sudo nvidia-smi -i {ids(group)} -rac"),
        )
    held = [g for g in known if _held(g) and not _lowered(g)]
    if held:
        clocks = ", ".join(str(g.clock_sm) for g in held)
        yield warn(
            f"{gpu_words(held)}: SM clock held at {clocks} MHz by a clock setting",
            f"up to {held[0].clock_sm_max} MHz",
            subject=gpu_subject(held),
            fix=setting("Unlock the clocks", f"sudo nvidia-smi -i {ids(held)} -rgc"),
        )
    if not low and not held:
        yield ok(f"no lowered clock setting on {counted(known)}")
