"""Figures of `fsdp-doctor dryrun`: time and memory at scale, and errors against what GPUs measured.

`python -m bench.memory speed` replays a 7B model on 64 ranks and a 70B model on 1,024.
`python -m bench.memory accuracy [SET…] [--write]` compares the cases of fixtures/memory_truth (shared more hf own) with
their truth; with `--write` it writes docs/dryrun-accuracy.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor.memory.events import EventList
from fsdp_doctor.memory.simulate import Run, simulate, steps
from tests.support.replays import job, replayed, truth

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "fixtures" / "memory_truth" / "shared" / "models.py"
SETS = ("shared", "more", "hf", "own")
SPEED = (
    (
        "7B x 64 ranks",
        {"dim": 4096, "heads": 32, "layers": 32, "hidden": 11008},
        {"batch": 1, "seq": 4096},
        64,
        (),
        10,
    ),
    (
        "70B x 1,024 ranks",
        {"vocab": 128256, "dim": 8192, "heads": 64, "layers": 80, "hidden": 28672},
        {"batch": 1, "seq": 8192},
        1024,
        ("--checkpoint-activations", "LlamaBlock"),
        30,
    ),
)


ABOUT = """# Predicted against measured peaks

Written by `python -m bench.memory accuracy --write`. Truth: one H200, torch 2.11 + CUDA 13.0, cuDNN 9.19, rank 0 of N
over a fake process group (DDP: over NCCL), three steps. Errors are predicted over measured, less one. `shared`, `more`
and `hf` are the cases that the replay was first compared with; `own` are models and options measured afterwards.
"""
HEADS = (
    "| case | measured GiB | predicted GiB | peak % | after backward % | optimizer % | reserved: measured, band GiB |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Row:
    """One case. Bytes and per cent."""

    name: str
    api: str
    measured: int
    predicted: int
    error: float
    after_backward: float
    optimizer: float
    reserved: int
    reserved_low: int
    reserved_high: int

    def text(self) -> str:
        """The row of a table."""
        gib = 2**30
        return (
            f"| {self.name} | {self.measured / gib:.3f} | {self.predicted / gib:.3f} | {self.error:+.3f} "
            f"| {self.after_backward:+.3f} | {self.optimizer:+.3f} "
            f"| {self.reserved / gib:.3f}, {self.reserved_low / gib:.3f} to {self.reserved_high / gib:.3f} |"
        )


def speed() -> None:
    """Wall time of the whole command, resident memory of its child."""
    for name, model, batch, world, more, goal in SPEED:
        command = [sys.executable, "-m", "fsdp_doctor", "dryrun", "--format", "json", "--gpu", "H100 80GB"]
        command += [
            "--model",
            f"{MODELS}:llama",
            "--model-args",
            json.dumps(model),
            "--batch",
            f"{MODELS}:llama_batch",
        ]
        command += ["--batch-args", json.dumps(batch), "--world-size", str(world), "--wrap", "LlamaBlock"]
        command += ["--param-dtype", "bf16", "--reduce-dtype", "fp32", *more]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        seconds = time.monotonic() - began
        data = json.loads(done.stdout)["data"]
        print(
            f"{name}: {data['params'] / 1e9:.1f}B parameters, peak {data['peak']['allocated_bytes'] / 2**30:.2f} GiB, "
            f"{seconds:.1f} s (goal {goal}), {data['replay_rss_bytes'] / 2**20:.0f} MiB resident (goal 600)"
        )


def accuracy(names: list[str], write: bool) -> None:
    """Errors per set."""
    tables: list[str] = []
    every: list[Row] = []
    for name in names:
        cases = [(c, t) for c, t in truth(name) if not unmodelled(c)]
        with tempfile.TemporaryDirectory() as folder:
            found = replayed([job(name, c) for c, _ in cases], Path(folder), 3600)
        kept = [r for r in (row(c, t, e) for (c, t), e in zip(cases, found, strict=True)) if r is not None]
        every += kept
        line = summary(name, kept)
        print(line)
        for r in kept:
            print("   " + r.text())
        tables += [f"## {line}", "", *HEADS, *(r.text() for r in kept), ""]
    lines = reserved(every)
    print("\n".join(lines))
    if write:
        text = "\n".join((ABOUT, *tables, "## Reserved", "", *lines, ""))
        (ROOT / "docs" / "dryrun-accuracy.md").write_text(text)


def summary(name: str, rows: list[Row]) -> str:
    """Median and largest error of the peak, and of the two other figures."""
    errors = [abs(r.error) for r in rows]
    after, top = max(abs(r.after_backward) for r in rows), max(abs(r.optimizer) for r in rows)
    return (
        f"{name}: {len(rows)} cases, median {statistics.median(errors):.3f} %, largest {max(errors):.3f} %; "
        f"after backward within {after:.3f} %, optimizer within {top:.3f} %"
    )


def reserved(rows: list[Row]) -> list[str]:
    """How well the memory that the allocator holds is known."""
    lines: list[str] = []
    for api in ("fsdp2", "fsdp1", "ddp"):
        some = [r for r in rows if r.api == api]
        if some:
            errors = [abs(r.reserved_low / r.reserved - 1) * 100 for r in some]
            inside = sum(r.reserved_low * 0.999 <= r.reserved <= r.reserved_high * 1.001 for r in some)
            lines.append(
                f"- {api}: {len(some)} cases, median error of the lower figure {statistics.median(errors):.2f} %, "
                f"largest {max(errors):.1f} %; the measured figure lies in the band in {inside} of {len(some)}."
            )
    return lines


def band(events: EventList, run: Run, api: str) -> tuple[int, int]:
    """The lower and the upper figure of what is reserved."""
    return run.reserved_peak, max(run.reserved_peak, simulate(events, deferred=True).reserved_peak)


def held(measured: dict[str, object]) -> int:
    """What the allocator held at most, less what cuBLAS had taken before the model came."""
    reserved, base = measured["reserved"], measured["base"]
    assert isinstance(reserved, int) and isinstance(base, int)
    return reserved - (base >> 21 << 21)


def unmodelled(case: dict[str, object]) -> bool:
    """What the command refuses."""
    return case["api"] == "fsdp1" and bool(case.get("offload"))


def row(case: dict[str, object], measured: dict[str, object], found: EventList | str) -> Row | None:
    """The errors of one case; refusals are printed."""
    if isinstance(found, str):
        print(f"{measured['id']}: {found}")
        return None
    run = simulate(found)
    last, real = steps(run.phases)[-1], measured["steps"][-1]  # type: ignore[index]
    peak = max(max(s.fwd_bwd_peak, s.opt_peak) for s in steps(run.phases))

    def off(a: int, b: object) -> float:
        assert isinstance(b, int)
        return 100 * (a / b - 1)

    low, high = band(found, run, str(case["api"]))
    return Row(
        name=str(measured["id"]),
        api=str(case["api"]),
        measured=measured["peak"],  # type: ignore[arg-type]
        predicted=peak,
        error=off(peak, measured["peak"]),
        after_backward=off(last.after_backward, real["after_backward"]),
        optimizer=off(last.opt_peak, real["opt_peak"]),
        reserved=held(measured),
        reserved_low=low,
        reserved_high=high,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["speed"]:
        speed()
    else:
        accuracy([a for a in sys.argv[2:] if a in SETS] or list(SETS), "--write" in sys.argv)
