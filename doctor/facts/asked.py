"""The commands of the children that ask NVML and torch, and how their output becomes nvml.json and stack.json.

    outcome = process.run(nvml_command(), 20.0)
    answers = nvml_answers(outcome)

Whatever happened to the child, what it had answered by then is kept, and the call that it died in is named.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fsdp_doctor.facts.nvml_answers import error_of
from fsdp_doctor.facts.source import Json
from fsdp_doctor.process import Outcome
from fsdp_doctor.subjects.fact import Known, Unknown

CHILDREN = Path(__file__).parent / "children"
HANDLE, COUNT, INIT = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetCount", "nvmlInit"
NO_ANSWER, CRASHED = "NoAnswer", "Crashed"
"""Errors that are not NVML's: the call never came back, or the child died while it was made."""
IMPORT = "import torch"
FRAME = re.compile(r'^ {2}File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of faulthandler, the innermost first."""


def nvml_command() -> list[str]:
    """Arguments of the NVML child, for this interpreter."""
    spec = importlib.util.find_spec("pynvml")
    named = ["--pynvml", spec.origin] if spec is not None and spec.origin else []
    return [sys.executable, "-I", str(CHILDREN / "nvml_child.py"), *named]


def torch_command(executable: str) -> list[str]:
    """Arguments of the torch child, for the interpreter that would train. To be run with its environment."""
    return [executable, "-B", str(CHILDREN / "torch_child.py")]


def nvml_answers(outcome: Outcome) -> Known[Mapping[str, Json]] | Unknown:
    """nvml.json. An error of its own is `{"error": NAME, "reason": TEXT}`, as where NVML does not start."""
    system: dict[str, Json] = {}
    devices: dict[int, dict[str, Json]] = {}
    unanswered = CRASHED if not (outcome.timed_out or outcome.abandoned) else NO_ANSWER
    for line in _lines(outcome.stdout):
        if not (isinstance(line, list) and len(line) in (2, 3) and isinstance(line[1], str)):
            continue
        device, function = line[0], line[1]
        answer: Json = line[2] if len(line) == 3 else {"error": unanswered}
        if isinstance(device, int):
            devices.setdefault(device, {})[function] = answer
        else:
            system[function] = answer
    problem = outcome.problem or "it ended without an answer"
    if "import" in system:
        return Unknown(
            f"nvidia-ml-py cannot be used: {_error_text(system['import'])}", "pip install nvidia-ml-py"
        )
    if not system:
        return Unknown(f"the program that asks NVML: {problem}")
    started = error_of(system.pop(INIT, None))
    if started in (NO_ANSWER, CRASHED):
        return Known({"error": started, "reason": f"{INIT}: {problem}"}, "NVML")
    if started is not None:
        return Known({"error": started}, "NVML")
    count = system.get(COUNT)
    listed = range(count) if isinstance(count, int) else ()
    never: dict[str, Json] = {HANDLE: {"error": unanswered}}
    entries = [_device(devices.get(i, never)) for i in listed]
    return Known({"system": system, "devices": entries}, "NVML")


def _device(answers: Mapping[str, Json]) -> Mapping[str, Json]:
    """The entry of one GPU: its answers, or the error of its handle."""
    error = error_of(answers.get(HANDLE))
    if error is not None:
        return {"error": error}
    return {f: a for f, a in answers.items() if f != HANDLE}


def stack_answers(outcome: Outcome, executable: str) -> Known[Mapping[str, Json]] | Unknown:
    """stack.json; unknown where `executable` is no Python that can describe itself."""
    found: dict[str, Json] = {}
    torch: dict[str, Json] | None = None
    doing = "start"
    for line in _lines(outcome.stdout):
        if not isinstance(line, dict):
            continue
        doing = str(line.get("doing", doing)) if "doing" in line else doing
        part = line.get("torch")
        if isinstance(part, dict):
            torch = {**(torch or {}), **part}
        found.update((k, v) for k, v in line.items() if k not in ("doing", "torch"))
    if not isinstance(found.get("python"), str):
        return Unknown(_no_python(outcome, executable), "name a Python from 3.8 on with --python")
    problem = None if outcome.ok else _with_place(outcome)
    if problem is not None and torch is None:
        torch = {"error": f"{doing}: {problem}" if doing != IMPORT else problem}
    elif problem is not None and torch is not None and "cuda_available" not in torch and "error" not in torch:
        torch["cuda_error"] = f"{doing}: {problem}"
    found["torch"] = torch
    return Known(found, executable)


def _lines(output: bytes) -> Iterator[Json]:
    """JSON values of whole lines; what is none is passed over."""
    for raw in output.splitlines():
        try:
            value: Json = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        yield value


def _error_text(answer: Json) -> str:
    return str(answer.get("error")) if isinstance(answer, Mapping) else str(answer)


def _with_place(outcome: Outcome) -> str:
    """What ended a child, and the innermost line of Python that it was in, if it could say so."""
    frame = FRAME.search(outcome.stderr.decode("utf-8", "replace"))
    place = f" in {frame.group(1)}, line {frame.group(2)} ({frame.group(3)})" if frame else ""
    return f"{outcome.problem}{place}"


def _no_python(outcome: Outcome, executable: str) -> str:
    """Why an interpreter gave no description of itself."""
    if outcome.error is not None:
        return f"{executable} cannot be run: {outcome.error}"
    if b"SyntaxError" in outcome.stderr or b"importlib.metadata" in outcome.stderr:
        return f"{executable} is older than Python 3.8"
    problem = outcome.problem or "it printed no answer"
    return f"{executable} is no working Python: {problem}"
