"""CUDA_VISIBLE_DEVICES against the GPUs that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.engine.devices import counted
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus

VARIABLE = "CUDA_VISIBLE_DEVICES"
TAIL = re.compile(r"\+?(\d+)(?!\d)\s*\S")
"""A number and something after it, which CUDA does not look at."""
UNSET = Fix("Unset it, or list GPUs that are there", f"unset {VARIABLE}")


@check("GPU007", Row.START, needs=(Gpus, Environment), tags=("gpu", "variables"))
def visible_devices(facts: Facts, options: Options) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES hides the GPUs or names ones that are not there.

    What: reads the variable as CUDA does: a list of indices or UUIDs that ends at the first entry that is
        no GPU; an empty list, or a GPU named twice, leaves none, and what follows a number is not read.
    Why: torch counts only what is left. An entry left over from another machine silently removes all
        that follow it, and the ranks beyond stop with "invalid device ordinal".
    Fix: unset the variable, or list GPUs that nvidia-smi -L shows.
    Sources: CUDA C++ programming guide (environment variables); NVIDIA MPS documentation.
    """
    gpus, value = facts[Gpus], facts[Environment].get(VARIABLE)
    if value is None:
        yield ok(f"{VARIABLE} is not set: {counted(gpus.present)}")
        return
    left = gpus.visible or ()
    entries = [e.strip() for e in value.split(",")]
    subject = Subject(variable=VARIABLE)
    wanted = [e for e in entries if e and not e.startswith("-")]
    shown = f"{VARIABLE}={value[:120]}"
    if not wanted:
        yield fail(
            f"{shown} hides all {counted(gpus.present)}",
            "the GPUs of this job, or the variable not set",
            subject=subject,
            fix=UNSET,
        )
    elif len(set(wanted)) < len(wanted) and not left:
        twice = sorted({e for e in wanted if wanted.count(e) > 1})
        yield fail(
            f"{shown} names {', '.join(twice)} twice, which leaves no GPU at all",
            "each GPU once",
            subject=subject,
            fix=UNSET,
        )
    elif any(e.startswith("MIG-") for e in wanted) and left:
        yield ok(f"{shown}: one MIG instance")
    elif len(left) < len(wanted):
        first = wanted[len(left)]
        yield fail(
            f"{shown}: {first} is no GPU of this machine ({counted(gpus.devices)}: "
            f"0 to {len(gpus.devices) - 1}); {len(left)} of {len(wanted)} entries count",
            "only GPUs that are there: the list ends at the first that is not",
            subject=subject,
            fix=UNSET,
        )
    elif cut := [(e, m.group(1)) for e in wanted if (m := TAIL.match(e)) is not None]:
        yield fail(
            f"{shown}: {cut[0][0][:80]} is read as GPU {cut[0][1]} alone; {len(left)} of "
            f"{counted(gpus.present)} are left",
            "numbers or UUIDs separated by commas",
            subject=subject,
            fix=Fix("Separate the entries with commas", f"export {VARIABLE}=0,1"),
        )
    elif len(left) < len(gpus.present):
        yield ok(f"{shown}: {len(left)} of {counted(gpus.present)}")
    elif list(left) != sorted(left):
        yield info(
            f"{shown} changes the order of the GPUs",
            expected="LOCAL_RANK is then not the number nvidia-smi shows",
            subject=subject,
        )
    else:
        yield ok(f"{shown}: all {counted(left)}")
