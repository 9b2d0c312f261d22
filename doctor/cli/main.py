"""The entry point: finds the command, and turns every way in which one can end into an exit status."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from fsdp_doctor.cli.lazy import LazyGroup
from fsdp_doctor.cli.otherwise import PROGRAM, meant
from fsdp_doctor.cli.output import complain, silence

WRONG = 2
BROKEN = 3
INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": ("fsdp_doctor.cli.check", "Judge this machine, or a recording of one, before a run."),
    "record": ("fsdp_doctor.cli.record", "Record what the checks need, to judge it elsewhere."),
    "probe": ("fsdp_doctor.cli.probe", "Measure the collectives that FSDP uses between the ranks."),
    "dryrun": ("fsdp_doctor.cli.dryrun", "Predict a configuration's GPU memory, without a GPU."),
    "rehearse": (
        "fsdp_doctor.cli.rehearse",
        "Run a training script as rank 0 of N, and see what it allocates.",
    ),
    "run": ("fsdp_doctor.cli.run", "Run a job so that everything needed is there when it fails or hangs."),
    "diagnose": (
        "fsdp_doctor.cli.diagnose",
        "Name the cause, the rank and the fix of a job that failed or hangs.",
    ),
    "ckpt": ("fsdp_doctor.cli.ckpt.group", "Read checkpoints: what is in them, and do they load here."),
    "list": ("fsdp_doctor.cli.listing", "List the checks."),
    "explain": ("fsdp_doctor.cli.explain", "Explain a check or a row of the failure table."),
    "table": ("fsdp_doctor.cli.table", "Print the failure table."),
}
"""Command -> module and one line of help. The module's `command` is loaded when it is called."""

EPILOG = """\
\b
Exit status:
  0    nothing failed (warnings are allowed unless --strict)
  1    at least one check failed
  2    the command line or the configuration is wrong
  3    something asked for could not be judged, or the tool failed
  130  interrupted (143: ended by SIGTERM)
"""


class Commands(LazyGroup):
    """The commands of the tool."""

    modules = COMMANDS

    def otherwise(self, name: str) -> str:
        """Of words that users try, rows of the failure table and codes of checks."""
        return meant(name) or _explained(name)


def _explained(name: str) -> str:
    """`explain` with a row or a code; "" for what is neither."""
    from fsdp_doctor.engine.registry import registry
    from fsdp_doctor.findings import Row

    if name.lower() in {r.value for r in Row}:
        return f"{PROGRAM} explain {name.lower()}"
    return f"{PROGRAM} explain {name.upper()}" if registry().get(name.upper()) is not None else ""


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from fsdp_doctor.cli.output import emit
        from fsdp_doctor.cli.version import version_text

        emit(version_text())
        ctx.exit()


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, the plug-ins and the dates of the data tables.",
)
def cli() -> None:
    """Name the cause, the rank and the fix when PyTorch FSDP training fails."""


class Ended(BaseException):
    """A signal asks this process to end: what is under way is left, and children are ended."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _end(number: int, _frame: object) -> NoReturn:
    raise Ended(number)


def _heed_signals() -> None:
    """End as on Ctrl-C when a batch system or a closed terminal says so; nohup keeps what it asked for."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    # Imports and reports make many objects and hardly a cycle: looking for one is a tenth of a short run.
    gc.set_threshold(50_000, 20, 20)
    _heed_signals()
    status = run(sys.argv[1:] if argv is None else argv)
    silence()
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run a command and return the exit status; nothing that a command raises gets past this."""
    began = time.monotonic()
    try:
        if "_FSDP_DOCTOR_COMPLETE" in os.environ:
            cli.main(list(argv), PROGRAM, "_FSDP_DOCTOR_COMPLETE")
        with cli.make_context(PROGRAM, list(argv), obj=began) as context:
            status = cli.invoke(context)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        complain(error.format_message(), raw=True)
        return error.exit_code
    except click.ClickException as error:
        _explain(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain(f"{PROGRAM}: interrupted")
        return INTERRUPTED
    except Ended as asked:
        complain(f"{PROGRAM}: ended by {signal.Signals(asked.number).name}")
        return 128 + asked.number
    except BrokenPipeError:
        return 0
    except Exception as error:
        if isinstance(error, OSError) and not _has_folder():
            complain(f"{PROGRAM}: error: the current folder was removed: change to one that exists")
            return WRONG
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            complain(f"{PROGRAM}: error: cannot write the output: {error.strerror}")
            return BROKEN
        return _internal(error, "--verbose" in argv)


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _internal(error: Exception, verbose: bool) -> int:
    """Whatever else happens is this tool's fault and must read like it."""
    if verbose:
        complain("".join(traceback.format_exception(type(error), error, error.__traceback__)), raw=True)
    hint = "" if verbose else "; run with --verbose for the traceback"
    complain(f"{PROGRAM}: internal error: {type(error).__name__}: {error}{hint}")
    return BROKEN


def _explain(error: click.ClickException) -> None:
    complain(f"{PROGRAM}: error: {error.format_message()}")
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else PROGRAM
        complain(f"hint: '{path} --help' shows the usage")
