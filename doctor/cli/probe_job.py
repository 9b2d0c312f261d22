"""The job whose step is forecast from a probe: its options, on `probe` and on `check`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from fsdp_doctor.probe.forecast import DTYPE_BYTES, Job
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.tables.compute_rates import compute_rate

Command = TypeVar("Command", bound=Callable[..., object])
COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBGT]?)\Z", re.IGNORECASE)
SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MOST_UNITS = 10_000
MOST_PARAMETERS = 1e15
RECOMPUTE = {"none": 0.0, "selective": 0.3, "full": 1.0}
"""Part of the forward that the backward repeats."""
FORM = "write 32x218M,1x262M (32 units of 218 million parameters, one of 262) or 8B/32 (equal units)"
NEEDED = ("units", "tokens")
OTHERS = (
    "world_size",
    "param_dtype",
    "reduce_dtype",
    "recompute",
    "no_reshard",
    "accumulate",
    "attention",
    "gpu",
    "tflops",
    "between",
)
POSITIVE = click.FloatRange(min=0, min_open=True, max=1e6)


def job_options(command: Command) -> Command:
    """Options that describe a job; `--units` and `--tokens` make a forecast of it."""
    options = [
        click.option(
            "--units",
            metavar="UNITS",
            help="Forecast a training step with these FSDP units: parameters of each in the order of use, as "
            "32x218M,1x262M, or equal ones as 8B/32.",
        ),
        click.option(
            "--tokens",
            type=click.IntRange(1, 1 << 40),
            metavar="N",
            help="Tokens per GPU and microstep: batch times sequence length.",
        ),
        click.option(
            "--world-size",
            type=click.IntRange(1, 1 << 20),
            metavar="N",
            help="Ranks of that job. [default: those that are measured]",
        ),
        click.option(
            "--param-dtype",
            type=click.Choice(list(DTYPE_BYTES)),
            help="Of gathered units. [default: bfloat16]",
        ),
        click.option(
            "--reduce-dtype",
            type=click.Choice(list(DTYPE_BYTES)),
            help="Of gradients. [default: --param-dtype]",
        ),
        click.option(
            "--recompute",
            type=click.Choice(list(RECOMPUTE)),
            help="Activation checkpointing of that job. [default: none]",
        ),
        click.option("--no-reshard", is_flag=True, help="It keeps gathered parameters until backward."),
        click.option(
            "--accumulate", type=click.IntRange(1, 1 << 16), metavar="N", help="Its microsteps per step."
        ),
        click.option(
            "--attention",
            metavar="HxS",
            help="Hidden size and sequence length, for attention's FLOPs: 4096x8192.",
        ),
        click.option(
            "--gpu", metavar="NAME", help="The GPU it runs on, as H100. [default: the measured one]"
        ),
        click.option(
            "--tflops",
            type=POSITIVE,
            metavar="X",
            help="TFLOP/s per GPU that its compute reaches alone. [default: from the probe, or by --gpu]",
        ),
        click.option(
            "--between",
            type=POSITIVE,
            metavar="GB/S",
            help="busbw of a ring between its nodes, where the probe sees one node only.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def job_of(own: Mapping[str, object], world: int | None = None) -> Job | None:
    """The job that the options describe; None without any. Raises `click.UsageError`.

    `world` is its number of ranks where other options say it.
    """
    units, tokens = own["units"], own["tokens"]
    if not isinstance(units, str) or not isinstance(tokens, int):
        said = [n for n in (*NEEDED, *OTHERS) if own[n] not in (None, False)]
        if said:
            missing = [f"--{n}" for n in NEEDED if own[n] is None]
            raise click.UsageError(
                f"--{said[0].replace('_', '-')} describes a job whose step is forecast; give "
                f"{' and '.join(missing)} too"
            )
        return None
    size, tflops, between, gpu = own["world_size"], own["tflops"], own["between"], own["gpu"]
    accumulate, recompute = own["accumulate"], own["recompute"]
    param_dtype = str(own["param_dtype"] or "bfloat16")
    if isinstance(gpu, str) and compute_rate(gpu) is None:
        raise click.UsageError(f"--gpu {gpu}: not in the table of GPUs; give --tflops instead")
    return Job(
        units=parse_units(units),
        tokens=float(tokens),
        world_size=size if isinstance(size, int) else world,
        param_dtype=param_dtype,
        reduce_dtype=str(own["reduce_dtype"] or param_dtype),
        recompute=RECOMPUTE[str(recompute or "none")],
        reshard=not own["no_reshard"],
        accumulate=accumulate if isinstance(accumulate, int) else 1,
        attention=_attention(own["attention"]),
        gpu=gpu if isinstance(gpu, str) else None,
        tflops=tflops if isinstance(tflops, float) else None,
        between=between if isinstance(between, float) else None,
    )


def parse_units(text: str) -> tuple[float, ...]:
    """Parameters of each unit of "32x218M,1x262M" or "8B/32". Raises `click.UsageError`."""
    found: list[float] = []
    for part in text.split(","):
        times, cross, size = part.strip().partition("x")
        whole, slash, pieces = part.strip().partition("/")
        if slash:
            count, each = _whole(pieces), _count(whole)
            each = each / count if each and count else None
        elif cross:
            count, each = _whole(times), _count(size)
        else:
            count, each = 1, _count(part)
        if not count or not each or len(found) + count > MOST_UNITS:
            raise click.UsageError(f"--units: {part.strip()[:40] or 'nothing'!r} is no unit; {FORM}")
        found += [each] * count
    if sum(found) > MOST_PARAMETERS:
        raise click.UsageError(f"--units: more than {MOST_PARAMETERS:.0e} parameters")
    return tuple(found)


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _count(text: str) -> float | None:
    match = COUNT.match(text.strip())
    return float(match[1]) * SCALE[match[2].upper()] if match and len(match[1]) < 20 else None


def _attention(text: object) -> tuple[int, int] | None:
    if not isinstance(text, str):
        return None
    hidden, _, sequence = text.lower().partition("x")
    both = _whole(hidden), _whole(sequence)
    if not both[0] or not both[1]:
        raise click.UsageError(
            f"--attention {text[:40]}: write the hidden size and sequence length as 4096x8192"
        )
    return both[0], both[1]


def memory_of(facts: Facts | None) -> int | None:
    """Bytes of the smallest GPU of this machine; None where they are not known."""
    gpus = facts.find(Gpus) if facts is not None else None
    return min((g.memory_total for g in gpus.present if g.memory_total), default=None) if gpus else None
