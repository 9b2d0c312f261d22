"""Reads the error counters of every GPU: `python -I counters_child.py [--pynvml FILE]`, run by this Python.

Prints one JSON object, GPU UUID -> counter -> value, with the names of `fsdp_doctor.tables.probe_counters`.
A child, because NVML can hang on a sick GPU.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Print all counters that the driver answers."""
    from fsdp_doctor.facts.children.nvml_child import binding
    from fsdp_doctor.tables.probe_counters import NVML_FIELDS

    nvml = binding(arguments[1] if arguments[:1] == ["--pynvml"] else None)
    nvml.nvmlInit()
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        values = {}
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            answers = nvml.nvmlDeviceGetFieldValues(handle, list(NVML_FIELDS.values()))
        except nvml.NVMLError:
            continue
        for name, answer in zip(NVML_FIELDS, answers, strict=False):
            if answer.nvmlReturn == 0:
                kind = KINDS.get(answer.valueType)
                if kind is not None:
                    values[name] = getattr(answer.value, kind)
        found[uuid.decode() if isinstance(uuid, bytes) else uuid] = values
    os.write(1, json.dumps(found).encode())


KINDS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
"""NVML_VALUE_TYPE_* of whole numbers -> member of the value."""

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).absolute().parents[2]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])
    os._exit(0)
