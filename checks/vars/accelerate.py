"""Variables that make Hugging Face accelerate build another job than the script asks for."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Row, Subject, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.tables.debug_variables import ACCELERATE_FSDP

USE = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")


@check("VAR022", Row.WRONG, needs=(Environment,), uses=(Launch, Scheduler), tags=("vars", "accelerate"))
def plugin_is_left_over(facts: Facts, options: Options) -> Iterator[Finding]:
    """Variables of accelerate's plug-ins are left in the environment

    What: ACCELERATE_USE_FSDP, FSDP_SHARDING_STRATEGY and their like are set outside a rank that accelerate
        started, or two plug-ins are switched on at once.
    Why: Accelerator() and the FSDP plug-in take defaults from these variables without a word: the job shards,
        wraps, offloads or saves otherwise than its configuration says.
    Fix: unset them and let `accelerate launch` with a configuration file set them.
    Sources: accelerate sources (utils/launch.py, utils/dataclasses.py: FullyShardedDataParallelPlugin).
    """
    variables = settings(facts)
    launch, scheduler = facts.find(Launch), facts.find(Scheduler)
    used = [n for n in USE if variables.on(n)]
    values = sorted(n for n in variables.items if n in ACCELERATE_FSDP)
    if len(used) > 1:
        yield warn(
            f"{' and '.join(used)} are both on",
            "one plug-in",
            subject=Subject(variable=used[1]),
            fix=Fix("Unset all but one", f"unset {' '.join(used[1:])}"),
        )
        return
    found = used + values
    if not found:
        yield ok("no variable of accelerate's plug-ins is set")
        return
    inside = launch is None and scheduler is not None and scheduler.rank is not None
    if inside:
        yield info(f"accelerate's plug-in takes its defaults from {', '.join(found)}")
        return
    yield warn(
        f"set in the shell: {', '.join(found)}; accelerate takes its defaults from there",
        "unset: accelerate launch sets them from its configuration",
        subject=Subject(variable=found[0]),
        fix=Fix("Unset them", f"unset {' '.join(found)}"),
    )
