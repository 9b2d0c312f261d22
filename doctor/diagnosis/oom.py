"""Out-of-memory messages: their figures in all wordings, and what the figures say."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.diagnosis.phases import LOAD
from fsdp_doctor.subjects.incident import Hit, OomReport

_UNITS = {
    "bytes": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_SIZE = r"(\d+(?:\.\d+)?) ?([KMGT]iB|[KMG]B|bytes|B)"
_PATTERNS = {
    "requested": (rf"Tried to allocate {_SIZE}", rf"Requested size: {_SIZE}", rf"Requested\s*: {_SIZE}"),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"{_SIZE} total capacity", rf"Device limit\s*: {_SIZE}"),
    "free": (rf"of which {_SIZE} is free", rf"{_SIZE} free", rf"Free \(according to CUDA\)\s*: {_SIZE}"),
    "in_use": (rf"this process has {_SIZE} memory in use",),
    "allocated": (
        rf"Of the allocated memory {_SIZE} is allocated by PyTorch",
        rf"{_SIZE} already allocated",
        rf"Currently allocated\s*: {_SIZE}",
    ),
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "private_pools": (rf"with {_SIZE} allocated in private pools",),
    "allowed": (rf"{_SIZE} allowed",),
}
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_GPU = re.compile(r"\b[GXNM]PU (\d+)\b")
GIB = 2**30
OVERHEAD = 2 * GIB
"""Memory of a process that is not PyTorch's allocator and needs no explanation: context, cuBLAS, NCCL."""
OOM_CODES = frozenset(("LOG301", "LOG303", "LOG304", "LOG305", "LOG501"))


def size(number: str, unit: str) -> int:
    """Bytes."""
    return int(float(number) * _UNITS[unit.lower()])


def words(size_bytes: int | None) -> str:
    """A size as torch prints it."""
    if size_bytes is None:
        return "an unknown size"
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.2f} MiB"


def figures(text: str) -> tuple[dict[str, int | None], dict[int, int]]:
    """Bytes that a message names, by `OomReport`'s fields, and the memory of other processes by their number."""
    values: dict[str, int | None] = {}
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            if found := re.search(pattern, text):
                values[name] = size(found[1], found[2])
                break
    others = {int(m[1]): size(m[2], m[3]) for m in _OTHER.finditer(text)}
    if values.get("in_use") is None and len(others) == 1:
        # Inside a container the message names this very process by its number outside.
        values["in_use"] = next(iter(others.values()))
        others = {}
    if values.get("unallocated") is None and (found := _RESERVED.search(text)):
        values["unallocated"] = max(size(found[1], found[2]) - (values.get("allocated") or 0), 0)
    return values, others


def report(hit: Hit) -> OomReport:
    """The figures of one message."""
    values, others = figures(hit.text)
    gpu = _GPU.search(hit.text)
    return OomReport(
        origin=hit.origin,
        text=hit.text,
        gpu=int(gpu[1]) if gpu else None,
        others=others,
        frames=hit.frames,
        **values,
    )


def reports(hits: Iterable[Hit]) -> tuple[OomReport, ...]:
    """Those of all out-of-memory messages."""
    return tuple(report(h) for h in hits if h.code in OOM_CODES)


def on_one_gpu(ooms: Iterable[OomReport]) -> tuple[int, tuple[int, ...]] | None:
    """A GPU on which several ranks ran out of memory beside each other's processes, and these ranks.

    Without other processes in the message the number says nothing: a launcher that shows each rank one GPU
    makes all of them GPU 0.
    """
    ranks: dict[int, set[int]] = {}
    for oom in ooms:
        if oom.gpu is not None and oom.origin.rank is not None and _others_matter(oom):
            ranks.setdefault(oom.gpu, set()).add(oom.origin.rank)
    gpu, most = max(ranks.items(), key=lambda item: len(item[1]), default=(0, set()))
    return (gpu, tuple(sorted(most))) if len(most) > 1 else None


def sub_diagnosis(
    oom: OomReport, phase: str | None, shared: tuple[int, tuple[int, ...]] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the figures say, and what to do about it, the likeliest first; `shared` is of `on_one_gpu`."""
    says: list[str] = []
    fixes: list[str] = []
    requested, free, allocated, unallocated = oom.requested, oom.free, oom.allocated, oom.unallocated
    limited = oom.allowed is not None and (oom.total is None or oom.allowed < 0.9 * oom.total)
    if limited and free is not None and requested is not None and free > requested:
        says.append(
            f"{words(free)} are free, but this process is allowed {words(oom.allowed)} only (memory fraction)"
        )
        fixes.append("Raise torch.cuda.set_per_process_memory_fraction")
    elif shared is not None:
        gpu, ranks = shared
        says.append(f"{len(ranks)} ranks allocate on GPU {gpu}, beside each other's processes")
        where = "Call torch.cuda.set_device(local_rank) before anything is put on a GPU"
        saved = 'torch.load puts tensors on the GPU that they were saved from: load with map_location="cpu". '
        fixes.append(saved + where if phase == LOAD else where)
    elif _others_matter(oom) and (largest := max(oom.others.items(), key=lambda o: o[1]))[1] > GIB:
        says.append(f"another process ({largest[0]}) holds {words(largest[1])} of the same GPU")
        fixes.append(
            f"End process {largest[0]} if it is stale, or choose another GPU: give each rank its own with torch.cuda.set_device(local_rank)"
        )
    if not limited and free is not None and requested is not None and free > 2 * requested:
        says.append(
            f"{words(free)} are free and {words(requested)} were asked for: a limit (memory fraction, MIG), not the size"
        )
        fixes.append("Look for a memory fraction, MIG slices or a driver mapping limit")
    if (
        allocated
        and unallocated is not None
        and unallocated > 256 << 20
        and (unallocated > 0.2 * allocated or (requested is not None and unallocated > requested))
    ):
        says.append(
            f"{words(unallocated)} are reserved and unallocated although {words(requested)} were asked for: fragmentation"
        )
        fixes.append(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since torch 2.9) against fragmentation"
        )
    if oom.in_use is not None and allocated is not None:
        foreign = oom.in_use - allocated - (unallocated or 0)
        if foreign > OVERHEAD and (
            requested is None or foreign - OVERHEAD > requested or foreign > 0.1 * oom.in_use
        ):
            says.append(
                f"{words(foreign)} of this process lie outside PyTorch's allocator (NCCL buffers, contexts, other libraries)"
            )
            fixes.append(
                "Look for contexts of other ranks on this GPU (a missing torch.cuda.set_device), and for many process groups"
            )
    says += _by_phase(oom, phase)
    fixes += _fixes_by_phase(phase)
    return tuple(says), tuple(dict.fromkeys(fixes))


def _others_matter(oom: OomReport) -> bool:
    """Whether it would have fitted without the other processes, or they hold much of the GPU."""
    held = sum(oom.others.values())
    if not held:
        return False
    fits = oom.free is None or oom.requested is None or oom.free + held >= oom.requested
    return fits or (oom.total is not None and held > 0.1 * oom.total)


def _by_phase(oom: OomReport, phase: str | None) -> list[str]:
    if phase == "save":
        return [
            "it happened while a state dict was gathered for saving: a full state dict needs all parameters on one GPU"
        ]
    if phase == "optimizer":
        return [
            "it happened in the optimizer's step: its states are made in the first step, twice the parameters in float32 for Adam"
        ]
    if phase == "logits":
        return [
            "it happened at the logits or the loss: vocabulary x sequence x batch in float32 is one large tensor"
        ]
    if phase == "eval":
        return ["it happened in evaluation: its batch or generation cache is larger than training's"]
    if phase == "unshard":
        return [
            "it happened while a unit was gathered: a unit that holds too much (only the root is wrapped) is gathered as a whole"
        ]
    if phase == "wrap":
        return [
            "it happened while the model was moved or wrapped: the whole model was on the GPU before sharding"
        ]
    return []


def _fixes_by_phase(phase: str | None) -> list[str]:
    return {
        "save": ["Save a sharded state dict (DCP), or a full one with offload to CPU on rank 0 only"],
        "optimizer": [
            "Shard the optimizer with the parameters (make it after wrapping), or use an 8-bit or fused optimizer, or CPU offload"
        ],
        "logits": ["Compute the loss in chunks, or shorten the sequence or batch"],
        "eval": ["Use a smaller evaluation batch under torch.no_grad()"],
        "unshard": [
            "Wrap each transformer block as its own unit (auto_wrap_policy, or fully_shard on every block)"
        ],
        "wrap": [
            "Build the model on the meta device or the CPU and let FSDP move the shards (device_id, sync_module_states)"
        ],
    }.get(phase or "", [])
