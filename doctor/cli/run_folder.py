"""What the folder of a recorded job says of it: the manifest, what the host tells, how it ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fsdp_doctor.cli.reporting import now
from fsdp_doctor.cli.version import tool
from fsdp_doctor.diagnosis.recording import evidence
from fsdp_doctor.diagnosis.recording.conduct import Ended
from fsdp_doctor.diagnosis.recording.folder import MANIFEST_SCHEMA, RUN, drop_empty, write_json
from fsdp_doctor.diagnosis.recording.secrets import redact
from fsdp_doctor.diagnosis.recording.settings import Setting
from fsdp_doctor.facts.redact import Redactor

SHOWN = (
    *("CUDA_", "NCCL_", "TORCH", "PYTORCH_", "SLURM_", "MASTER_"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "OMP_", "PET_"),
)
"""Beginnings of the names of variables that bear on training; no other is kept."""


def manifest_of(
    words: Sequence[str],
    env: Mapping[str, str],
    chosen: Sequence[Setting],
    torch: str | None,
    python: str | None,
    hook: bool,
) -> dict[str, object]:
    """`run.json`: what is run, by which Python, with which variables; secrets redacted."""
    redactor = Redactor()
    return {
        "schema": MANIFEST_SCHEMA,
        "tool": tool(),
        "started": now(),
        "host": socket.gethostname(),
        "cwd": os.getcwd(),
        "command": redactor.words(words),
        "python": python,
        "torch": torch,
        "hook": hook,
        "variables": {s.name: {"value": s.value, "set_by": "user" if s.kept else "run"} for s in chosen},
        "environment": redactor.env({k: v for k, v in env.items() if k.startswith(SHOWN)}),
    }


def log_folders(folder: Path, words: Sequence[str], given: Mapping[str, str]) -> list[Path]:
    """Where the ranks' logs grow, so that a launcher that shows nothing is not taken for a job that hangs."""
    found = [given["PET_LOG_DIR"]] if "PET_LOG_DIR" in given else []
    for i, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ("--log-dir", "--log_dir"):
            found.append(value or (words[i + 1] if i + 1 < len(words) else ""))
    return [Path(f) for f in found if f]


def gather(folder: Path, seconds: float, kills: int | None, pids: Collection[int]) -> None:
    """What the host tells after the end."""
    with suppress(OSError):
        lines = evidence.kernel_lines(seconds + 5, pids)
        if lines:
            (folder / "kernel.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        after = evidence.oom_kills()
        if kills is not None and after is not None and after > kills:
            text = f"memory.events of {socket.gethostname()}: oom_kill {after - kills}\n"
            (folder / "memory.events.log").write_text(text, encoding="utf-8")


def close(folder: Path, manifest: dict[str, object], ended: Ended, hangs: int, spent: float) -> None:
    """Write how it ended beside the manifest. `spent`: CPU seconds of `run` itself."""
    left = redact(p for p in folder.glob("logs/**/*") if p.is_file())
    told = {
        "not_redacted": list(left),
        "ended": now(),
        "seconds": round(ended.seconds, 3),
        "own_cpu_seconds": round(spent, 3),
        "status": ended.status,
        "signals": list(ended.signals),
        "hangs": hangs,
        "stopped_by_run": ended.stopped,
    }
    with suppress(OSError):
        write_json(folder / RUN, {**manifest, **told})
        drop_empty(folder)
