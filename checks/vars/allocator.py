"""The allocator's configuration in PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._allocator import known, pairs, wrong
from fsdp_doctor.checks.vars._spelling import nearest
from fsdp_doctor.checks.vars._values import about, says, unset
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, Settings, settings, torch_version
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.stack import Torch
from fsdp_doctor.tables import torch_variables as table

SPLIT_SMALL = 32
"""MiB. Below this nearly every large block is kept whole: much memory is reserved and little used."""


def _set(variables: Settings) -> list[Setting]:
    return [s for n in table.ALLOC_CONF_NAMES if (s := variables.get(n)) is not None and s.value.strip()]


@check("VAR017", Row.START, needs=(Environment,), uses=(Launch, Torch), tags=("vars", "torch", "memory"))
def allocator_text_does_not_parse(facts: Facts, options: Options) -> Iterator[Finding]:
    """PyTorch cannot parse the configuration of its allocator

    What: PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF has a key that torch does not know, a value that
        it does not take (such as true instead of True), or another form than KEY:VALUE,KEY:VALUE.
    Why: torch raises at its first CUDA call, on every rank; a typing slip there ends the job before it
        starts.
    Fix: correct the text. Example: expandable_segments:True,max_split_size_mb:256.
    Sources: PyTorch CUDA semantics (memory management), torch 2.13 AllocatorConfig.h and
        CUDAAllocatorConfig.h.
    """
    variables, version = settings(facts), torch_version(facts)
    newer = version is not None and version[:2] > table.NEWEST
    bad = False
    found = _set(variables)
    for setting in found:
        for key, value in pairs(setting.value):
            option = table.ALLOCATOR.get(key)
            if option is not None:
                wanted = wrong(option, value)
                if wanted is None:
                    continue
                said = f"{says(setting)}: {key} has the value {value!r}"
            else:
                near = nearest(key, known())
                wanted = f"{near}" if near else f"one of {', '.join(sorted(known()))}"
                said = f"{says(setting)}: torch knows no key {key!r}" + (
                    f", did you mean {near}?" if near else ""
                )
                if newer and near is None:
                    bad = True
                    yield info(f"{said} in these tables; torch is newer than them", subject=about(setting))
                    continue
            bad = True
            yield fail(
                said,
                wanted,
                subject=about(setting),
                fix=Fix(f"Correct {setting.name}, or unset it", f"unset {setting.name}"),
            )
    if not bad:
        yield ok(", ".join(says(s) for s in found) or "the allocator has its defaults")


@check("VAR018", Row.OOM, needs=(Environment,), uses=(Launch, Torch, Gpus), tags=("vars", "torch", "memory"))
def allocator_is_configured_badly(facts: Facts, options: Options) -> Iterator[Finding]:
    """The allocator's configuration contradicts itself or works against FSDP

    What: both variables are set, PYTORCH_ALLOC_CONF with a torch that does not read it,
        backend:cudaMallocAsync together with options of the native allocator, a very small
        max_split_size_mb, or a memory fraction below the whole.
    Why: one variable silently wins over the other; cudaMallocAsync ignores the native options and cannot give
        NCCL buffers to register; FSDP's parameters of changing size fragment a pool whose blocks may not be
        split.
    Fix: keep one variable. For "reserved but unallocated" memory use expandable_segments:True.
    Sources: PyTorch CUDA semantics (memory management), torch 2.13 CUDAAllocatorConfig.h, NCCL user guide
        (user buffer registration).
    """
    variables, version = settings(facts), torch_version(facts)
    found = _set(variables)
    bad = False
    old, new = variables.get(table.ALLOC_CONF_NAMES[0]), variables.get(table.ALLOC_CONF_NAMES[1])
    unread = new is not None and version is not None and version[:2] < table.ALLOC_CONF_SINCE
    if new is not None and unread and version is not None:
        bad = True
        yield warn(
            f"{says(new)} with torch {'.'.join(map(str, version))}, which does not read it",
            f"{table.ALLOC_CONF_NAMES[0]} before torch {'.'.join(map(str, table.ALLOC_CONF_SINCE))}",
            subject=about(new),
            fix=Fix(f"Use {table.ALLOC_CONF_NAMES[0]}"),
        )
    elif len(found) == 2 and old is not None and new is not None and old.value != new.value:
        bad = True
        yield warn(
            f"{says(old)} and {says(new)}: the first wins, the second is not read",
            "one of them",
            subject=about(new),
            fix=unset(new),
        )
    for setting in found[:1] if not unread else found:
        for finding in _judge(setting):
            bad = True
            yield finding
    if not found and facts.find(Gpus) is not None:
        yield ok("the allocator has its defaults; expandable_segments:True helps where memory fragments")
    elif not bad:
        yield ok(", ".join(says(s) for s in found) or "the allocator has its defaults")


def _judge(setting: Setting) -> Iterator[Finding]:
    options = {k: v or "" for k, v in pairs(setting.value)}
    if options.get("backend") == "cudaMallocAsync":
        native = [
            k for k in options if k in table.ALLOCATOR and k != "backend" and not k.startswith("pinned_")
        ]
        if native:
            yield warn(
                f"{says(setting)}: cudaMallocAsync ignores {', '.join(native)}",
                "options of one backend",
                subject=about(setting),
                fix=Fix("Drop the backend or the options"),
            )
        else:
            yield info(
                f"{says(setting)}: NCCL cannot register such memory (user buffers, symmetric memory)",
                subject=about(setting),
            )
    split = options.get("max_split_size_mb", "")
    if split.isascii() and split.isdigit() and len(split) < 9 and 20 <= int(split) < SPLIT_SMALL:
        yield warn(
            f"{says(setting)}: blocks above {split} MiB are never split, and FSDP's are larger",
            "256 or more, or expandable_segments:True",
            subject=about(setting),
            fix=Fix("Use expandable segments instead", f"export {setting.name}=expandable_segments:True"),
        )
    share = options.get("per_process_memory_fraction", "")
    if share and wrong(table.Option("fraction"), share) is None and float(share) < 0.9:
        yield warn(
            f"{says(setting)}: torch may use {float(share):.0%} of each GPU",
            "the whole GPU",
            subject=about(setting),
            fix=Fix("Remove per_process_memory_fraction"),
        )
