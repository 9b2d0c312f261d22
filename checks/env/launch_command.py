"""The launch command: its script, its configuration, and what the launcher would refuse."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Identity


@check("ENV040", Row.START, needs=(Launch,), uses=(Identity,), tags=("launch",))
def script_unreadable(facts: Facts, options: Options) -> Iterator[Finding]:
    """Training script of the launch command cannot be read.

    What: looks for the script that the command names, from the folder in which the check runs. Beside a
        recording a script that is not here may well be on the recorded machine.
    Why: every rank ends at once with "can't open file", and torchrun reports only exit code 2.
    Fix: correct the path or the folder; on several nodes the script must be at that path on each.
    Sources: torchrun documentation; Python documentation (command line).
    """
    launch, identity = facts[Launch], facts.find(Identity)
    if launch.script_exists is False and identity is not None and identity.recorded:
        yield info(f"{launch.script} is not here, and the recording does not say whether its machine has it")
    elif launch.script_error is not None or launch.script_exists is False:
        yield fail(
            f"{launch.launcher} would start {launch.script}: {launch.script_error or 'no such file'}",
            "a Python script that this user can read",
            subject=Subject(path=launch.script),
            fix=Fix("Correct the path, or start from the folder that it is relative to"),
        )
    elif launch.script is not None:
        yield ok(f"script {launch.script}")
    else:
        yield ok(f"module {launch.module}" if launch.module is not None else "no script to look for")


@check("ENV041", Row.START, needs=(Launch,), tags=("launch",))
def launcher_refuses(facts: Facts, options: Options) -> Iterator[Finding]:
    """Launch command is one that the launcher would refuse, or that starts another job than it seems to.

    What: reads the command as its launcher does: unknown options, values that do not parse, counts that
        contradict each other.
    Why: the launcher stops before any rank starts, or waits for nodes that never come.
    Fix: correct the option that is named.
    Sources: documentation of torchrun, accelerate launch, srun, mpirun and deepspeed.
    """
    launch = facts[Launch]
    for problem in launch.problems:
        yield fail(
            problem,
            f"a command that {launch.launcher} accepts",
            fix=Fix(
                f"Correct the command; `{_help(launch.launcher)}` lists the options", _help(launch.launcher)
            ),
        )
    if not launch.problems:
        ranks = f"{launch.nproc_per_node or launch.nproc_spec or '?'} ranks per node"
        yield ok(f"{launch.launcher}: {ranks}")


def _help(launcher: str) -> str:
    return "accelerate launch --help" if launcher == "accelerate" else f"{launcher} --help"


@check("ENV042", Row.START, needs=(Launch,), tags=("launch", "config"))
def launch_config_unreadable(facts: Facts, options: Options) -> Iterator[Finding]:
    """Configuration file of the launch command cannot be read.

    What: opens the file that accelerate would take: --config_file, or its default in the cache folder.
    Why: accelerate stops at a broken file. Without one it silently starts with defaults: no FSDP at all.
    Fix: correct the file, or write it again with `accelerate config`.
    Sources: accelerate documentation (launch, configuration files).
    """
    launch = facts[Launch]
    if launch.config_error is not None:
        yield fail(
            f"{launch.config_file}: {launch.config_error}"
            if launch.config_file and launch.config_file not in launch.config_error
            else launch.config_error,
            f"a configuration that {launch.launcher} can read",
            subject=Subject(path=launch.config_file),
            fix=Fix("Correct the file, or write it again with `accelerate config`"),
        )
    else:
        yield ok(f"configuration {launch.config_file}" if launch.config_file else "no configuration file")
