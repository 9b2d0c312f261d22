"""NCCL's guards against nodes that do not fit together."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, says, switched_on, unset
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import nccl_version, settings
from fsdp_doctor.findings import Finding, Fix, Row, fail, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.stack import Torch


@check("VAR003", Row.NCCL, needs=(Environment,), uses=(*job.USES, Torch), tags=("vars", "nccl"))
def guards_are_off(facts: Facts, options: Options) -> Iterator[Finding]:
    """A guard of NCCL is switched off

    What: NCCL_IGNORE_NET_MISMATCH or NCCL_IGNORE_COLLNET_MISMATCH is set to 1, so that nodes with different
        sets of network adapters may join one job; or NCCL_CHECKS_DISABLE is set, which no current NCCL reads.
    Why: with different adapters per node, channels wait for peers that do not exist: the GPUs show 100 %
        use at a third of their power, and nothing is ever printed. Newer NCCL ignores the difference by
        default; setting the variable says that somebody met the error and hid it.
    Fix: set it to 0, so that a difference ends the job with an error, and make the adapters of all nodes
        equal (NCCL_IB_HCA, device nodes in the container).
    Sources: NCCL user guide, env.rst (NCCL_IGNORE_NET_MISMATCH); nccl#2428.
    """
    variables = settings(facts)
    single = job.multi_node(facts, options) is False
    bad = False
    for name in ("NCCL_IGNORE_NET_MISMATCH", "NCCL_IGNORE_COLLNET_MISMATCH"):
        setting = switched_on(variables, name)
        if setting is None:
            continue
        bad = True
        say = warn if single else fail
        yield say(
            f"{says(setting)}: nodes with different adapters may join and hang",
            "0, so that a difference is an error",
            subject=about(setting),
            fix=Fix(f"Set {name}=0 and make the adapters of all nodes equal", f"export {name}=0"),
        )
    setting = switched_on(variables, "NCCL_CHECKS_DISABLE")
    if setting is not None:
        bad = True
        version = nccl_version(facts)
        have = ".".join(map(str, version)) if version else "of today"
        yield warn(
            f"{says(setting)}: NCCL {have} does not read it (deprecated since 2.2.12)",
            "unset",
            subject=about(setting),
            fix=unset(setting),
        )
    if not bad:
        yield ok("no guard is off")
