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

from fsdp_doctor.memory.simulate import Run, steps
from tests.support.replays import job, runs, truth

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


@dataclass(frozen=True)
class Row:
    """One case."""

    name: str
    measured: int
    error: float
    after_backward: float
    optimizer: float


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
    for name in names:
        cases = truth(name)
        with tempfile.TemporaryDirectory() as folder:
            found = runs([job(name, c) for c, _ in cases if not unmodelled(c)], Path(folder), 3600)
        rows = [
            row(t, r) for (_, t), r in zip([x for x in cases if not unmodelled(x[0])], found, strict=True)
        ]
        kept = [r for r in rows if r is not None]
        errors = sorted(abs(r.error) for r in kept)
        line = (
            f"{name}: {len(kept)} cases, median {statistics.median(errors):.3f} %, largest {errors[-1]:.3f} %"
        )
        print(line)
        tables += [
            f"## {line}",
            "",
            "| case | measured GiB | peak % | after backward % | optimizer % |",
            "|---|---|---|---|---|",
        ]
        tables += [
            f"| {r.name} | {r.measured / 2**30:.3f} | {r.error:+.3f} | {r.after_backward:+.3f} | {r.optimizer:+.3f} |"
            for r in kept
        ]
        tables.append("")
    if write:
        head = "# Predicted against measured peaks\n\nWritten by `python -m bench.memory accuracy --write`. Truth: one H200, torch 2.11 + CUDA 13.0,\nrank 0 of N over a fake process group. Errors are predicted over measured, less one.\n\n"
        (ROOT / "docs" / "dryrun-accuracy.md").write_text(head + "\n".join(tables))


def unmodelled(case: dict[str, object]) -> bool:
    """What the command refuses."""
    return case["api"] == "fsdp1" and bool(case.get("offload"))


def row(measured: dict[str, object], found: Run | str) -> Row | None:
    """The errors of one case; refusals are printed."""
    if isinstance(found, str):
        print(f"{measured['id']}: {found}")
        return None
    last, real = steps(found.phases)[-1], measured["steps"][-1]  # type: ignore[index]
    peak = max(max(s.fwd_bwd_peak, s.opt_peak) for s in steps(found.phases))

    def off(a: int, b: int) -> float:
        return 100 * (a / b - 1)

    return Row(
        str(measured["id"]),
        measured["peak"],  # type: ignore[arg-type]
        off(peak, measured["peak"]),  # type: ignore[arg-type]
        off(last.after_backward, real["after_backward"]),
        off(last.opt_peak, real["opt_peak"]),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["speed"]:
        speed()
    else:
        accuracy([a for a in sys.argv[2:] if a in SETS] or list(SETS), "--write" in sys.argv)
