"""What a node has for saving and loading: as the options say, else of this machine."""

from __future__ import annotations

import os

from fsdp_doctor.subjects.checkpoint_cost import Limits

SECONDS = 10.0
"""For asking the machine."""


def limits_of(held: int, host_memory: int | None, gpu_memory: int | None, place: str) -> Limits:
    """Of the options, and of this machine where they leave something out."""
    from fsdp_doctor.cli.sources import ask_machine
    from fsdp_doctor.facts.collect import collect
    from fsdp_doctor.subjects.gpu import Gpus
    from fsdp_doctor.subjects.host import Host
    from fsdp_doctor.subjects.storage import Storage

    kinds = (Host, Storage, *(() if gpu_memory is not None else (Gpus,)))
    source = ask_machine(kinds, SECONDS, checkpoint=os.path.abspath(place))
    try:
        facts = collect(source, kinds, checkpoint=os.path.abspath(place))
    finally:
        source.close()
    host, origin = (host_memory, "--host-memory") if host_memory is not None else _free(facts.find(Host))
    gpu, gpu_origin = gpu_memory, "--gpu-memory"
    gpus = facts.find(Gpus) if gpu_memory is None else None
    if gpus is not None:
        totals = [g.memory_total for g in gpus.devices if g.memory_total]
        gpu, gpu_origin = (min(totals), "the smallest GPU of this machine") if totals else (None, "")
    storage = facts.find(Storage)
    folder = storage.checkpoint if storage is not None else None
    space = folder.space if folder is not None else None
    return Limits(
        host,
        origin if host is not None else "",
        None if gpu is None else gpu - held,
        gpu_origin if gpu is not None else "",
        None if space is None else space.available,
        "" if folder is None else folder.path,
    )


def _free(host: object) -> tuple[int | None, str]:
    from fsdp_doctor.subjects.host import Host

    if not isinstance(host, Host):
        return None, ""
    found = [(host.memory_available, "free memory of this machine")]
    group = host.cgroup
    if group.memory_max is not None:
        left = group.memory_max - (group.memory_current or 0)
        found.append((left, "what this control group has left"))
    known = [(size, words) for size, words in found if size is not None]
    return min(known) if known else (None, "")
