"""`fsdp-doctor run -- COMMAND`: run a job so that everything needed is there when it fails or hangs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click

from fsdp_doctor.cli.common import SECONDS, Settings, common
from fsdp_doctor.cli.discretion import discreet
from fsdp_doctor.cli.live import loads_now
from fsdp_doctor.cli.live_text import live_text
from fsdp_doctor.cli.output import complain, wants_ascii, wants_colour, write_file
from fsdp_doctor.cli.run_folder import close, gather, log_folders, manifest_of
from fsdp_doctor.diagnosis.recording import evidence, release
from fsdp_doctor.diagnosis.recording.conduct import CannotStart, Ended, conduct
from fsdp_doctor.diagnosis.recording.console import Console
from fsdp_doctor.diagnosis.recording.folder import (
    CONSOLE,
    RUN,
    FolderError,
    default_name,
    prepare,
    task,
    write_json,
)
from fsdp_doctor.diagnosis.recording.journal import Journal
from fsdp_doctor.diagnosis.recording.settings import Setting, settings
from fsdp_doctor.diagnosis.recording.watch import Watch
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.findings import Verdict
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.launch import Launch

PATIENCE = 120.0
HOOK = Path(__file__).absolute().parents[1] / "diagnosis" / "recording" / "hook"
NAME = "fsdp-doctor run"
DIAGNOSIS_SECONDS = 60.0
EVIDENCE = (CONSOLE, "logs", "flight", "nccl", "stacks", "kernel.log", "memory.events.log")
"""What of the folder is diagnosed; the journal and run.json are this command's own."""


@click.command(
    "run",
    short_help="Run a job so that everything needed is there when it fails or hangs.",
    # What follows the first word is the command's, with or without `--`.
    context_settings={"allow_interspersed_args": False},
)
@common("text")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="A new folder. [default: named by the time]"
)
@click.option(
    "--hang-after",
    type=SECONDS,
    default=PATIENCE,
    metavar="SECONDS",
    help=f"Look at the ranks after so long without output; less than the timeout. [default: {PATIENCE:.0f}]",
)
@click.option("--stop-on-hang", is_flag=True, help="End a job that hangs once its stacks are taken.")
@click.option("--no-hook", is_flag=True, help="Put nothing into the job's own Python processes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] COMMAND...")
def command(
    own: Settings,
    out: Path | None,
    hang_after: float,
    stop_on_hang: bool,
    no_hook: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND (torchrun, accelerate launch, srun, mpirun, python …) and exit with its status.

    Sets what the installed torch understands, and nothing that you have set: Flight Recorder and its files,
    logs of each rank, NCCL's messages. When no output comes and no rank moves, takes the stacks of all ranks
    of this host and asks for their Flight Recorders before the watchdog ends them. At the end says what went
    wrong, and DIR holds all of it.
    """
    if sys.platform != "linux":
        raise click.UsageError("run reads /proc and works on Linux only; start the command by itself")
    env = dict(os.environ)
    launch = _launch(command, env)
    alone = launch is None or launch.launcher == "python"
    try:
        folder = prepare(out or Path(default_name(datetime.now())), env, ranks=alone)
    except FolderError as error:
        raise click.UsageError(f"--out {error}" if out is not None else str(error)) from None
    # Named pipes want a local disk, and a short path.
    local = Path(tempfile.mkdtemp(prefix="fsdp-doctor-"))
    try:
        return _recorded(own, command, launch, env, folder, local, hang_after, stop_on_hang, not no_hook)
    finally:
        shutil.rmtree(local, ignore_errors=True)


def _recorded(
    own: Settings,
    words: tuple[str, ...],
    launch: Launch | None,
    env: dict[str, str],
    folder: Path,
    local: Path,
    patience: float,
    stop: bool,
    hook: bool,
) -> int:
    python = release.interpreter(words, env.get("PATH"))
    torch = release.version(python, env)
    chosen = settings(release.release(torch), launch, words, env, str(folder), str(local))
    given = _environment(env, chosen, folder, local, hook)
    manifest = manifest_of(words, env, chosen, torch, python, hook)
    write_json(folder / RUN, manifest)
    _announce(folder, torch, chosen, own.verbose)
    console = Console(folder / CONSOLE, _say)
    journal = Journal(folder / "journal" / f"{socket.gethostname()}.jsonl")
    watch = Watch(
        folder,
        local,
        journal,
        patience,
        _say,
        log_folders=log_folders(folder, words, given),
        stop=stop,
        loads=loads_now,
        shared=folder.parent if task(env) is not None else None,
    )
    kills = evidence.oom_kills()
    began, spent = time.monotonic(), time.process_time()
    try:
        ended = conduct(words, given, console, journal, watch)
    except CannotStart as error:
        _say(f"error: {error}")
        return error.status
    finally:
        console.close()
        journal.close()
    spent = time.process_time() - spent
    watch.finish()
    gather(folder, time.monotonic() - began, kills, watch.pids)
    close(folder, manifest, ended, watch.hangs, spent)
    _say(f"the command ended with {ended.exit_code}; kept in {folder}")
    if task(env) is None:
        _conclude(folder, ended, watch, own)
    else:
        _say(f"when all tasks have ended: fsdp-doctor diagnose {folder.parent}")
    return ended.exit_code


def _launch(words: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    try:
        return parse_launch(words, Path.cwd(), env)
    except (LaunchError, OSError):
        return None  # any command may be run


def _environment(
    env: Mapping[str, str], chosen: Sequence[Setting], folder: Path, local: Path, hook: bool
) -> dict[str, str]:
    given = {**env, **{s.name: s.value for s in chosen if not s.kept}}
    if hook:
        path = env.get("PYTHONPATH", "")
        given["PYTHONPATH"] = f"{HOOK}{os.pathsep}{path}" if path else str(HOOK)
        given["FSDP_DOCTOR_RUN"], given["FSDP_DOCTOR_LOCAL"] = str(folder), str(local)
        given["FSDP_DOCTOR_PID"] = str(os.getpid())
    return given


def _announce(folder: Path, torch: str | None, chosen: Sequence[Setting], verbose: bool) -> None:
    kept = [s.name for s in chosen if s.kept]
    yours = f"; left as you set them: {', '.join(kept)}" if kept else ""
    _say(f"records to {folder} (torch {torch or 'not found'}){yours}")
    if verbose:
        for setting in chosen:
            _say(f"{setting.name}={setting.value}{' (yours)' if setting.kept else ''}: {setting.why}")


def _conclude(folder: Path, ended: Ended, watch: Watch, own: Settings) -> None:
    """Say what went wrong. Nothing that happens here changes the status."""
    paths = [str(folder / n) for n in EVIDENCE if (folder / n).exists()]
    try:
        from fsdp_doctor.cli.diagnose import diagnosed
        from fsdp_doctor.cli.diagnose_text import render
        from fsdp_doctor.report.json import render as as_json

        report = diagnosed(paths, replace(own, deadline=DIAGNOSIS_SECONDS), time.monotonic())
        report = discreet(report)
        style = _style(own)
        write_file(folder / "diagnosis.json", as_json(report))
        sound = ended.status == 0 and not watch.hangs and report.verdict is Verdict.PASS
        text = "" if sound else render(report, style, table=True)
        if watch.last is not None:
            text = live_text(watch.last, style) + text
    except Exception as error:
        _say(f"no diagnosis: {type(error).__name__}: {error}; try `fsdp-doctor diagnose {folder}`")
        return
    if own.output is not None:
        write_file(own.output, text)
    elif text:
        with suppress(OSError, ValueError):
            click.echo(text, err=True, color=style.colour)


def _style(own: Settings) -> Style:
    """For standard error, where the report goes: standard output is the command's."""
    if own.output is not None:
        return own.style()
    colour = wants_colour(sys.stderr, os.environ, own.no_color)
    return replace(own.style(), colour=colour, ascii=wants_ascii(sys.stderr, os.environ))


def _say(text: str) -> None:
    complain(f"{NAME}: {text}")
