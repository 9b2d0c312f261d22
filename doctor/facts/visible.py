"""Which GPUs CUDA_VISIBLE_DEVICES leaves to a process.

An index counts in CUDA's own order, which is NVML's only under CUDA_DEVICE_ORDER=PCI_BUS_ID: the default
puts the fastest model first. On GPUs of one model both orders agree, and NVML's is used here throughout.
NVIDIA_VISIBLE_DEVICES plays no part: the container runtime has applied it before NVML could answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.nvml_answers import Answers, error_of, text
from fsdp_doctor.facts.source import Json
from fsdp_doctor.subjects.gpu import Gpu

NUMBER = re.compile(r"[+-]?\d+")


def visible_indices(value: str, gpus: Sequence[Gpu], devices: Sequence[Json]) -> tuple[int, ...]:
    """NVML indices in the order of the variable, by CUDA's rules.

    Entries are indices, prefixes of GPU UUIDs, or MIG identifiers (then the index of the parent GPU; a
    process gets one MIG instance only). The first invalid entry ends the list; an entry that occurs
    twice leaves nothing at all.
    """
    found: list[int] = []
    seen: set[int | str] = set()
    for entry in (e.strip() for e in value.split(",")):
        if entry.startswith("MIG-"):
            parent = _mig_parent(entry, gpus, devices)
            if parent is None or found:
                break
            return (parent,)
        index = _by_uuid(entry, gpus) if entry.startswith("GPU-") else _by_number(entry, len(gpus))
        if index is None:
            break
        if index in seen:
            return ()
        seen.add(index)
        found.append(index)
    return tuple(found)


def _by_number(entry: str, count: int) -> int | None:
    """As C reads a number: what follows the digits does not matter."""
    match = NUMBER.match(entry)
    if match is None or len(match.group()) > 9:
        return None
    index = int(match.group())
    return index if 0 <= index < count else None


def _by_uuid(prefix: str, gpus: Sequence[Gpu]) -> int | None:
    """The one GPU whose UUID starts so; several or none make the entry invalid."""
    if prefix == "GPU-":
        return None
    fits = [g.index for g in gpus if g.uuid is not None and g.uuid.startswith(prefix)]
    return fits[0] if len(fits) == 1 else None


def _mig_parent(entry: str, gpus: Sequence[Gpu], devices: Sequence[Json]) -> int | None:
    """The GPU that holds a MIG instance: MIG-GPU-UUID/GI/CI names it, MIG-UUID is looked up."""
    if entry.startswith("MIG-GPU-"):
        return _by_uuid(entry.removeprefix("MIG-").split("/")[0], gpus)
    for index, device in enumerate(devices):
        if isinstance(device, Mapping) and error_of(device) is None:
            instances = Answers(device).by_args("nvmlDeviceGetMigDeviceHandleByIndex").values()
            uuids = [text(i.get("nvmlDeviceGetUUID")) for i in instances if isinstance(i, Mapping)]
            if any(u is not None and u.startswith(entry) for u in uuids):
                return index
    # The instances were not recorded: a single GPU in MIG mode is the only one that can hold it.
    sliced = [g.index for g in gpus if g.mig_current]
    return sliced[0] if len(sliced) == 1 else None
