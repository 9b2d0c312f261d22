"""The model that will load a checkpoint, asked from its factory in a child with torch and a deadline."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fsdp_doctor.process import run
from fsdp_doctor.subjects.load_target import TargetModel, TargetTensor

CHILD = Path(__file__).with_name("children") / "model_child.py"
START = Path(__file__).parent.parent / "memory" / "child" / "start.py"
DEADLINE = 120.0
"""Seconds: importing torch and transformers from a network file system takes most of it."""


class ModelError(Exception):
    """The model could not be built; one line, with the user's file and line where known."""


def ask(
    spec: str,
    arguments: Mapping[str, object] | None = None,
    python: str | None = None,
    deadline: float = DEADLINE,
) -> TargetModel:
    """Build what `FILE.py:FACTORY`, `pkg.mod:FACTORY` or `hf:DIR` names. Raises `ModelError`."""
    command = [
        python or sys.executable,
        "-B",
        str(CHILD),
        str(START),
        spec,
        json.dumps(dict(arguments or {})),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    outcome = run(command, deadline, env=environment)
    line = outcome.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2]
    try:
        answer = json.loads(line)
    except ValueError:
        raise ModelError(f"--model {spec}: {outcome.problem or 'no answer that can be read'}") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("model"), dict):
        said = answer.get("error", "no model") if isinstance(answer, dict) else "no model"
        place = answer.get("place", "") if isinstance(answer, dict) else ""
        raise ModelError(f"--model {spec}: {said}{f' ({place})' if place else ''}")
    return _model(spec, answer["model"])


def _model(spec: str, told: Mapping[str, object]) -> TargetModel:
    try:
        tensors = [
            TargetTensor(str(n), tuple(int(d) for d in shape), str(dtype), bool(buffer), bool(trainable))
            for n, shape, dtype, buffer, trainable in told["tensors"]  # type: ignore[attr-defined]
        ]
        tied = tuple(tuple(map(str, group)) for group in told["tied"])  # type: ignore[attr-defined]
        modules = tuple((str(n), str(k)) for n, k in told["modules"])  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"--model {spec}: its description cannot be read") from None
    if not tensors:
        raise ModelError(f"--model {spec}: the module has no parameters")
    return TargetModel(spec, tuple(tensors), tied, modules)
