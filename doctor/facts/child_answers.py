"""Lines of the NVML and the torch child as nvml.json and stack.json; one that hung still answers in part."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.facts.asked import lines
from fsdp_doctor.facts.source import Json
from fsdp_doctor.process import Outcome
from fsdp_doctor.subjects.fact import Known, Unknown

INIT = "nvmlInit"
COUNT = "nvmlDeviceGetCount"
HANDLE = "nvmlDeviceGetHandleByIndex"
DEVICE_LIMIT = 1024


def nvml_answers(outcome: Outcome) -> Known[Mapping[str, Json]] | Unknown:
    """Answers by function and GPU. A call that never came back is an error of its function alone."""
    no_answer: Json = {"error": "Timeout" if outcome.timed_out else "Unknown"}
    asked: dict[int | None, dict[str, Json]] = {}
    unanswered: set[tuple[int | None, str]] = set()
    for part in lines(outcome):
        if not isinstance(part, list) or not 2 <= len(part) <= 3:
            continue
        device, function = part[0], part[1]
        if not isinstance(device, (int, type(None))) or not isinstance(function, str):
            continue
        (unanswered.add if len(part) == 2 else unanswered.discard)((device, function))
        asked.setdefault(device, {})[function] = part[2] if len(part) == 3 else no_answer
    system = asked.pop(None, {})
    broken = _error(system.get("import"))
    if broken is not None:
        return Unknown(f"the NVML binding could not be loaded: {broken}", "pip install nvidia-ml-py")
    if INIT not in system or (None, INIT) in unanswered:
        return Unknown(f"NVML: {outcome.problem or 'no answer'}", "see the kernel log for a GPU that hangs")
    error = _error(system.pop(INIT))
    if error is not None:
        return Known({"error": error}, "NVML")
    count = system.get(COUNT)
    numbers = [n for n in asked if n is not None and 0 <= n < DEVICE_LIMIT]
    total = max([count if isinstance(count, int) else 0, *(n + 1 for n in numbers)])
    devices = [_device(asked.get(n, {}), no_answer) for n in range(min(total, DEVICE_LIMIT))]
    return Known({"system": system, "devices": devices}, "NVML")


def _device(answers: dict[str, Json], no_answer: Json) -> Json:
    error = _error(answers.pop(HANDLE, no_answer))
    return answers if error is None else {"error": error}


def _error(answer: Json) -> str | None:
    error = answer.get("error") if isinstance(answer, Mapping) and len(answer) == 1 else None
    return error if isinstance(error, str) else None


def stack_answers(outcome: Outcome, python: str) -> Known[Mapping[str, Json]] | Unknown:
    """The parts of stack.json. A step that hung or crashed is the error of what it was to answer."""
    found: dict[str, Json] = {}
    torch: dict[str, Json] | None = None
    step = "start"
    for part in lines(outcome):
        if not isinstance(part, dict):
            continue
        doing, told = part.pop("doing", None), part.pop("torch", None)
        step = doing if isinstance(doing, str) else step
        if isinstance(told, dict):
            torch = (torch or {}) | told
        found |= part
    problem = outcome.problem
    if not found:
        return Unknown(f"{python} gave no answer ({step}): {problem or 'it printed nothing'}")
    found["torch"] = torch
    if problem is not None:
        where = f"{step}: {problem}"
        found["error"] = where
        if torch is None and step == "import torch":
            found["torch"] = {"error": where}
        elif torch is not None and not {"cuda_available", "error"} & torch.keys():
            found["torch"] = torch | {"cuda_error": where}
    return Known(found, python)
