"""Lines of the NVML and the torch child as nvml.json and stack.json.

Whatever happened to the child, what it had answered by then is kept, and the call that it died in is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsdp_doctor.facts.asked import lines
from fsdp_doctor.facts.nvml_answers import error_of
from fsdp_doctor.facts.source import Json
from fsdp_doctor.process import Outcome
from fsdp_doctor.subjects.fact import Known, Unknown

INIT = "nvmlInit"
COUNT = "nvmlDeviceGetCount"
HANDLE = "nvmlDeviceGetHandleByIndex"
DEVICE_LIMIT = 1024
NO_ANSWER, NOT_IN_TIME, CRASHED = "NoAnswer", "NotInTime", "Crashed"
"""Errors that are not NVML's own. The first: a call hung. The others say no more than that the child was
ended, or died, while it waited for the call: a driver without persistence mode may just be slow."""
HUNG_SECONDS = 30.0
"""More than the driver needs to wake eight GPUs."""
IMPORT = "import torch"
MORE_TIME = "allow more time with --deadline"
FRAME = re.compile(r'^ {2}File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of faulthandler, the innermost first."""
OLD_VERSION = re.compile(r"[0-2]\.|3\.[0-7](?:\.|\Z)")
OLD_PYTHON = (b"SyntaxError", b"importlib.metadata")
"""What an interpreter before 3.8 says of the torch child, if it does not even say its version."""
NAME_PYTHON = "name a Python from 3.8 on with --python"


def nvml_answers(outcome: Outcome) -> Known[Mapping[str, Json]] | Unknown:
    """Answers by function and GPU; `{"error": NAME, "reason": TEXT}` where NVML did not start.

    A call that never came back is an error of its function alone.
    """
    no_answer: Json = {"error": _unanswered(outcome)}
    asked: dict[int | None, dict[str, Json]] = {}
    for part in lines(outcome):
        if not isinstance(part, list) or not 2 <= len(part) <= 3:
            continue
        device, function = part[0], part[1]
        if isinstance(device, (int, type(None))) and isinstance(function, str):
            asked.setdefault(device, {})[function] = part[2] if len(part) == 3 else no_answer
    system = asked.pop(None, {})
    broken = system.get("import")
    if isinstance(broken, Mapping):
        return Unknown(f"the NVML binding cannot be used: {broken.get('error')}", "pip install nvidia-ml-py")
    problem = outcome.problem or "it ended without an answer"
    if not system:
        return Unknown(f"the program that asks NVML: {problem}", late=outcome.timed_out)
    error = error_of(system.pop(INIT, no_answer))
    if error == NOT_IN_TIME:
        return Unknown(f"NVML did not start in time: {problem}", MORE_TIME, late=True)
    if error in (NO_ANSWER, CRASHED):
        return Known({"error": error, "reason": f"{INIT}: {problem}"}, "NVML")
    if error is not None:
        return Known({"error": error}, "NVML")
    count = system.get(COUNT)
    numbers = [n for n in asked if n is not None and 0 <= n < DEVICE_LIMIT]
    total = max([count if isinstance(count, int) else 0, *(n + 1 for n in numbers)])
    devices = [_device(asked.get(n, {}), no_answer) for n in range(min(total, DEVICE_LIMIT))]
    return Known({"system": system, "devices": devices}, "NVML")


def _unanswered(outcome: Outcome) -> str:
    """What a call that has no answer means by how its child ended."""
    if outcome.abandoned or (outcome.timed_out and outcome.seconds >= HUNG_SECONDS):
        return NO_ANSWER
    return NOT_IN_TIME if outcome.timed_out else CRASHED


def _device(answers: dict[str, Json], no_answer: Json) -> Json:
    handle = answers.pop(HANDLE, no_answer)
    error = error_of(handle)
    if error in (NOT_IN_TIME, CRASHED):
        return {HANDLE: handle}
    return answers if error is None else {"error": error}


def stack_answers(outcome: Outcome, python: str) -> Known[Mapping[str, Json]] | Unknown:
    """The parts of stack.json. A step that hung or crashed is the error of what it was to answer.

    Unknown where `python` is no interpreter that can describe itself.
    """
    found: dict[str, Json] = {}
    torch: dict[str, Json] | None = None
    answered = False
    step = "start"
    for part in lines(outcome):
        if not isinstance(part, dict):
            continue
        answered |= "torch" in part
        doing, told = part.pop("doing", None), part.pop("torch", None)
        step = doing if isinstance(doing, str) else step
        if isinstance(told, dict):
            torch = (torch or {}) | told
        found |= part
    version = found.get("python")
    if not isinstance(version, str):
        return Unknown(_no_python(outcome, python), NAME_PYTHON, late=outcome.timed_out)
    if OLD_VERSION.match(version):
        return Unknown(f"{python} is Python {version}, which is older than 3.8", NAME_PYTHON)
    if outcome.problem is None and step == IMPORT and not answered:
        torch = {"error": "the import ended the interpreter, with status 0"}
    if outcome.problem is not None:
        where = f"{outcome.problem}{_place(outcome)}"
        if torch is None:
            torch = {"error": where if step == IMPORT else f"{step}: {where}"}
            if _unanswered(outcome) == NOT_IN_TIME:
                torch["late"] = True
        elif not {"cuda_available", "error"} & torch.keys():
            torch["cuda_error"] = f"{step}: {where}"
    return Known({**found, "torch": torch}, python)


def _place(outcome: Outcome) -> str:
    """The innermost line of Python that a child was in when it was ended, if it could say so."""
    frame = FRAME.search(outcome.stderr.decode("utf-8", "replace"))
    return f" in {frame.group(1)}, line {frame.group(2)} ({frame.group(3)})" if frame else ""


def _no_python(outcome: Outcome, python: str) -> str:
    """Why an interpreter gave no description of itself."""
    if outcome.error is not None:
        return f"{python} cannot be run: {outcome.error}"
    if any(sign in outcome.stderr for sign in OLD_PYTHON):
        return f"{python} is older than Python 3.8"
    return f"{python} is no working Python: {outcome.problem or 'it printed no answer'}"
