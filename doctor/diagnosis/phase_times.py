"""The parts of a step that a line prints with their times: what a rank did itself, and how long it waited."""

from __future__ import annotations

import re
from collections.abc import Mapping

FORWARD, BACKWARD, COMPUTE, OPTIMIZER, DATA, WAIT = (
    "forward",
    "backward",
    "compute",
    "optimizer",
    "data loading",
    "waiting",
)
_NAMES: tuple[tuple[str, str], ...] = (
    (
        COMPUTE,
        r"(?:gpu[ _-]?)?comput(?:e|ation)"
        r"|(?:forward|fwd)[ _-]?(?:and[ _-])?(?:backward|bwd)(?:[ _-]compute)?",
    ),
    (FORWARD, r"forward|fwd"),
    (BACKWARD, r"backward|bwd"),
    (OPTIMIZER, r"optim(?:izer)?(?:[ _-]?step)?"),
    (DATA, r"data(?:[ _-]?(?:load(?:ing|er)?|wait(?:ing)?|fetch(?:ing)?))?|load(?:ing)?[ _-]?data"),
    (
        WAIT,
        r"(?:exposed[ _-])?comm(?:s|unication)?|all[ _-]?reduce|all[ _-]?gather|reduce[ _-]?scatter"
        r"|nccl|barrier|(?:grad(?:ient)?[ _-])?sync|wait(?:ing)?",
    ),
)
_PART = re.compile(
    r"(?<![A-Za-z])(?:"
    + "|".join(f"(?P<n{i}>{names})" for i, (_, names) in enumerate(_NAMES))
    + r")(?:[ _-]?(?:time|took|dur(?:ation)?))?(?:[ _]?\(?(?P<before>ms|us|s|sec)\)?)?(?![A-Za-z])"
    r"[\"']?\s{0,2}[:=]?\s{0,4}(?P<v>\d+(?:\.\d+)?)\s?(?P<unit>ms|us|seconds|secs?|s)?(?![\w.%/])",
    re.I,
)
_SCALE = {"ms": 1e-3, "us": 1e-6}
NCCL_TIME = re.compile(r"(?<![\w.])(\d+\.\d+)(us|ms|s)\b")


def phase_times(text: str) -> Mapping[str, float]:
    """Part -> seconds. Names without a fraction and a unit are counts and no times."""
    found: dict[str, float] = {}
    for part in _PART.finditer(text):
        unit = (part["unit"] or part["before"] or "").lower()
        if not unit and "." not in part["v"]:
            continue
        name = next(name for i, (name, _) in enumerate(_NAMES) if part[f"n{i}"])
        found[name] = found.get(name, 0.0) + float(part["v"]) * _SCALE.get(unit, 1.0)
    return found


def own_seconds(parts: Mapping[str, float]) -> float | None:
    """What a rank worked itself; None where a line tells nothing of it. Compute, if given, is all of it."""
    names = (COMPUTE,) if COMPUTE in parts else (FORWARD, BACKWARD)
    if not any(n in parts for n in names):
        return None
    return sum(parts.get(n, 0.0) for n in (*names, OPTIMIZER, DATA))


def kernel_seconds(text: str) -> float:
    """The time of a kernel in a row of torch's profiler, whose columns for the processor are empty."""
    times = (float(v) * _SCALE.get(unit, 1.0) for v, unit in NCCL_TIME.findall(text))
    return next((t for t in times if t > 0), 0.0)
