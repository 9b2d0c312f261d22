"""Installed libraries against the exact versions that torch pins."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from fsdp_doctor.checks.env._requirements import pins, satisfied
from fsdp_doctor.checks.env._stack import NCCL_WHEEL, pip
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Stack

JUDGED = re.compile(r"(nvidia-|cuda-|triton\Z|pytorch-triton)")


@check("ENV025", Row.START, needs=(Stack,), tags=("torch", "cuda", "python"))
def pins_drift(facts: Facts, options: Options) -> Iterator[Finding]:
    """Libraries differ from the versions that torch pins.

    What: evaluates torch's own requirements for the inspected interpreter (through the meta-package
        cuda-toolkit since 2.11) and compares cuDNN, cuBLAS, NVSHMEM, triton and the other nvidia wheels
        with what is installed. NCCL is judged by ENV020.
    Why: torch was built and tested with exactly these. Another cuDNN fails at its first use or runs
        slower, another triton breaks torch.compile, and nodes that drifted apart give different results.
    Fix: install what torch pins; packages that force other versions belong into another environment.
    Sources: PyTorch wheel metadata (2.0 to 2.14); PEP 508.
    """
    stack = facts[Stack]
    if "torch" not in stack.dists:
        yield skip("torch is not installed (ENV010)")
        return
    judged, drift, missing, wanted = 0, [], [], []
    for requirement in pins(stack):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if not JUDGED.match(name) or NCCL_WHEEL.match(name) or not str(requirement.specifier):
            continue
        judged += 1
        version = stack.dists.get(name)
        pinned = f"{name}{requirement.specifier}"
        if version is None:
            missing.append(pinned)
        elif satisfied(requirement, version) is False:
            drift.append(f"{name} {version}, pinned {requirement.specifier}")
        else:
            continue
        wanted.append(pinned)
    if not judged:
        yield skip("torch pins no CUDA libraries here: it is a conda, source or CPU build")
        return
    if not drift and not missing:
        yield ok(f"{judged} libraries as torch pins them")
        return
    parts = [*drift[:8], *([f"not installed: {', '.join(missing[:8])}"] if missing else [])]
    quoted = " ".join(shlex.quote(w) for w in wanted[:24])
    yield warn(
        f"{len(drift) + len(missing)} of {judged} libraries differ from torch {stack.dists['torch']}'s pins: "
        + "; ".join(parts),
        ", ".join(wanted[:8]),
        fix=Fix(
            "Install the pinned versions, and move packages that force others into another environment",
            f"{pip(stack)} install {quoted}",
            Risk.DISRUPTIVE,
        ),
    )
