"""GPU architectures against the code that the torch build holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsdp_doctor.checks.env._driver import ptx_is_refused
from fsdp_doctor.checks.env._stack import fitting_index, machine, reinstall
from fsdp_doctor.engine import job
from fsdp_doctor.engine.devices import by_value, gpu_subject, gpu_words, used
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Status, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.gpu_architectures import Capability, Support, sm, support
from fsdp_doctor.tables.gpu_thresholds import SMALL_MEMORY_FRACTION
from fsdp_doctor.tables.torch_releases import cuda_of_tag, first_release_for
from fsdp_doctor.tables.versions import Version, local_tag, parse


@check("ENV015", Row.START, needs=(Gpus, Torch), uses=(*job.USES, Stack, Driver), tags=("torch", "gpu"))
def architecture_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """Torch holds no code for the architecture of a GPU.

    What: compares each GPU's compute capability with torch.cuda.get_arch_list(). Machine code runs on its
        own major version from its minor version on (sm_86 code on 8.9); PTX is compiled by the driver. An
        old GPU beside those that the ranks take, such as one for the display, is no failure.
    Why: the first kernel ends with "no kernel image is available for execution on the device". With PTX
        alone every kernel is compiled at the start of every rank, for minutes, and not at all by a driver
        older than torch's toolkit (error 222).
    Fix: install the wheel of an index that has the architecture; GPUs before Turing need cu126, Blackwell
        needs cu128 or newer.
    Sources: PyTorch RELEASE.md (CUDA architectures); CUDA programming guide (binary compatibility);
        pytorch#172352.
    """
    torch, gpus = facts[Torch], used(facts[Gpus])
    if torch.cuda is None:
        yield skip("torch is built without CUDA")
        return
    if not torch.arch_list:
        yield skip("torch names no architectures", enable="torch.cuda.get_arch_list() lists them")
        return
    groups = by_value((g, g.capability) for g in gpus if g.capability is not None)
    if not groups:
        yield skip("the compute capability of the GPUs is not known")
        return
    ptx_fails = ptx_is_refused(facts)
    fine = True
    for capability, members in groups.items():
        if capability is None:
            continue
        has = support(torch.arch_list, capability)
        if has is Support.SASS:
            continue
        fine = False
        finding = _finding(facts, capability, members, has, ptx_fails)
        rest = [g for g in gpus if g not in members]
        if has is Support.NONE and _left_to_itself(facts, options, members, rest):
            yield info(f"{finding.found}; the ranks fit on {gpu_words(rest)}", subject=finding.subject)
        elif has is Support.NONE and _for_display(members, rest):
            indices = ",".join(str(g.index) for g in rest)
            yield replace(
                finding,
                status=Status.WARN,
                fix=Fix(
                    "Hide it from the ranks",
                    f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={indices}",
                ),
            )
        else:
            yield finding
    if fine:
        names = ", ".join(sm(c) for c in groups if c is not None)
        yield ok(f"code for {names} among {' '.join(torch.arch_list[:24])}")


def _left_to_itself(facts: Facts, options: Options, members: list[Gpu], rest: list[Gpu]) -> bool:
    """Whether the ranks fit on the GPUs of a newer architecture, which CUDA lists first."""
    oldest = min((g.capability for g in rest if g.capability is not None), default=None)
    own = members[0].capability
    if oldest is None or own is None or own >= oldest:
        return False
    return job.local_ranks(facts, options) <= len(rest)


def _for_display(members: list[Gpu], rest: list[Gpu]) -> bool:
    """Whether these GPUs have too little memory beside the others to be meant for training."""
    largest = max((g.memory_total or 0 for g in rest), default=0)
    return all((g.memory_total or 0) < SMALL_MEMORY_FRACTION * largest for g in members)


def _finding(
    facts: Facts, capability: Capability, members: list[Gpu], has: Support, ptx_fails: bool
) -> Finding:
    torch = facts[Torch]
    name = members[0].name or "GPU"
    shown = " ".join(torch.arch_list[:24])
    subject, fix = gpu_subject(members), _fix(facts, capability)
    found = f"torch {torch.version} has {shown}; {gpu_words(members)} ({name}): {sm(capability)}"
    if has is Support.NONE:
        return fail(
            f"{found}: no kernel image for it",
            f"{sm(capability)}, or an older minor version of {capability[0]}.x, or PTX",
            subject=subject,
            fix=fix,
        )
    if ptx_fails:
        return fail(
            f"{found}: only PTX, which this driver is too old to compile (error 222)",
            f"machine code for {capability[0]}.x, or a driver as new as CUDA {torch.cuda}",
            subject=subject,
            fix=fix,
        )
    return warn(
        f"{found}: only PTX, which the driver compiles at the start",
        f"machine code for {capability[0]}.x",
        subject=subject,
        fix=fix,
    )


def _fix(facts: Facts, capability: Capability) -> Fix:
    torch, stack = facts[Torch], facts.find(Stack)
    driver = facts.find(Driver)
    numbers: Version | None = parse(driver.version) if driver is not None else None
    tag = fitting_index(stack, torch.version, numbers, (capability,))
    current = local_tag(torch.version)
    if tag is not None and cuda_of_tag(tag) != cuda_of_tag(current):
        text = f"Install the {tag} wheel of the same release, which has {sm(capability)}"
        return reinstall(text, stack, torch.version, tag)
    other = first_release_for(numbers, (capability,), machine(stack))
    if other is None:
        return Fix(
            f"Build torch with TORCH_CUDA_ARCH_LIST={capability[0]}.{capability[1]}", None, Risk.DISRUPTIVE
        )
    text = f"Install torch {other}, the newest release with a wheel for {sm(capability)} and this driver"
    release, _, index = other.partition(" from ")
    return reinstall(text, stack, f"{release}.*", index)
