"""Asks NVML about every GPU: `python -I nvml_child.py [--pynvml FILE]`, by the tool's own interpreter.

Prints one JSON list per line: `[device, function]` before a call and `[device, function, answer]` after it,
device being null for the system. So whoever reads along knows at any moment what was answered, and which
call was made last. A call that hangs gets the answer `{"error": "NoAnswer"}`, and the others are not held up.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp_doctor.facts.children.nvml_device import Device

HUNG_ALONE, HUNG_ALL = 6.0, 20.0
"""Seconds without any progress, where other GPUs have answered everything, and where none has: waking GPUs
without persistence mode takes seconds each, one after the other."""


class Lines:
    """Standard output, each line written at once and whole."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self.last = time.monotonic()

    def __call__(self, device: int | None, function: str, *answer: object) -> None:
        """Write one line."""
        data = (json.dumps((device, function, *answer), separators=(",", ":")) + "\n").encode()
        with self._writing:
            self.last = time.monotonic()
            while data:
                data = data[os.write(1, data) :]


def binding(path: str | None) -> ModuleType:
    """The module pynvml, from a file where one is named. Raises ImportError."""
    if path is None:
        return importlib.import_module("pynvml")
    spec = importlib.util.spec_from_file_location("pynvml", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml"] = module
    spec.loader.exec_module(module)
    return module


def wait(devices: Mapping[int, Device], report: Lines) -> None:
    """Until every GPU has answered, or those that have not hang; these are reported."""
    while running := [d for d in devices.values() if d.is_alive()]:
        running[0].join(0.05)
        limit = HUNG_ALONE if len(running) < len(devices) else HUNG_ALL
        if time.monotonic() - report.last > limit:
            for device in running:
                report(device.index, device.asking, {"error": "NoAnswer"})
            return


def main(arguments: list[str]) -> None:
    """Print all answers."""
    from fsdp_doctor.facts.children.nvml_calls import Nvml, attempt, failed
    from fsdp_doctor.facts.children.nvml_device import Device
    from fsdp_doctor.facts.children.nvml_questions import COUNT, SYSTEM

    report = Lines()
    path = arguments[1] if arguments[:1] == ["--pynvml"] else None
    try:
        nvml = Nvml(binding(path))
    except Exception as error:  # the binding may be missing, or broken in any way
        report(None, "import", {"error": f"{type(error).__name__}: {error}"})
        return
    answers = {}
    for function in ("nvmlInit", *SYSTEM, COUNT):
        report(None, function)
        answers[function] = attempt(partial(nvml.call, function))
        report(None, function, answers[function])
        if function == "nvmlInit" and failed(answers[function]) is not None:
            return
    count = answers[COUNT]
    devices: dict[int, Device] = {}
    for index in range(count if isinstance(count, int) else 0):
        devices[index] = Device(nvml, report, index, devices)
    for device in tuple(devices.values()):
        device.start()
    wait(devices, report)


if __name__ == "__main__":
    # Isolated, the interpreter knows nothing of a folder that only PYTHONPATH or the user's site named.
    sys.path.append(str(Path(__file__).absolute().parents[3]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])
    # Closing NVML can hang on a sick GPU; the end of the process closes it as well.
    os._exit(0)
