"""What the command line says about the other ranks of a job, and whether this process is one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import click

from fsdp_doctor.facts.scheduler import read_scheduler
from fsdp_doctor.ranks.context import Alone, Context, context

Command = TypeVar("Command", bound=Callable[..., object])
MODES = ("auto", "join", "off")
TOKEN_VARIABLE = "FSDP_DOCTOR_TOKEN"


@dataclass(frozen=True, slots=True)
class Joining:
    """What the command line says about other ranks. `wait` is in seconds, for ranks that come late."""

    mode: str = "auto"
    wait: float | None = None
    token: str | None = None


def joining_options(command: Command) -> Command:
    """Add --ranks, --wait and --token to a command; `joining` takes them out of its arguments again."""
    for option in (
        click.option(
            "--token",
            envvar=TOKEN_VARIABLE,
            metavar="TEXT",
            help=f"A secret that the ranks of the job share; {TOKEN_VARIABLE} does the same.",
        ),
        click.option(
            "--wait",
            type=click.FloatRange(min=0, max=86_400),
            metavar="SECONDS",
            help="How long rank 0 waits for ranks to come. [default: within the deadline]",
        ),
        click.option(
            "--ranks",
            type=click.Choice(MODES),
            default="auto",
            help="Under torchrun, srun or mpirun all ranks are judged together: auto, always (join) or "
            "never (off). [default: auto]",
        ),
    ):
        command = option(command)
    return command


def joining(own: Mapping[str, object]) -> Joining:
    """The values of `joining_options`."""
    mode, wait, token = own["ranks"], own["wait"], own["token"]
    return Joining(
        mode if isinstance(mode, str) else "auto",
        float(wait) if isinstance(wait, (int, float)) else None,
        token if isinstance(token, str) and token else None,
    )


def place(asked: Joining, launched: bool) -> Context | Alone:
    """Which rank of a job the process is. `launched`: there is a launch command, and it may be none.

    Raises `click.UsageError` where joining was asked for and cannot be.
    """
    if asked.mode == "off":
        return Alone("--ranks off")
    scheduler = read_scheduler(os.environ)
    found = context(scheduler)
    if asked.mode == "join" and isinstance(found, Alone):
        raise click.UsageError(f"--ranks join: {found.reason}")
    if asked.mode == "auto" and launched and scheduler.launcher == "env":
        # RANK and WORLD_SIZE of an operator's pod number nodes, for the launcher that is yet to start.
        return Alone("a launch command was given, and this process is none of its ranks")
    return found
