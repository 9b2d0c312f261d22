"""`fsdp-doctor run -- COMMAND`: run a job so that everything needed is there when it fails or hangs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
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
from fsdp_doctor.cli.reporting import now
from fsdp_doctor.cli.version import tool
from fsdp_doctor.diagnosis.recording import evidence, release
from fsdp_doctor.diagnosis.recording.conduct import CannotStart, Ended, conduct
from fsdp_doctor.diagnosis.recording.console import Console
from fsdp_doctor.diagnosis.recording.folder import (
    CONSOLE,
    MANIFEST_SCHEMA,
    RUN,
    FolderError,
    default_name,
    drop_empty,
    prepare,
    task,
    write_json,
)
from fsdp_doctor.diagnosis.recording.journal import Journal
from fsdp_doctor.diagnosis.recording.secrets import redact
from fsdp_doctor.diagnosis.recording.settings import Setting, settings
from fsdp_doctor.diagnosis.recording.watch import Watch
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.facts.redact import Redactor
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
    manifest = _manifest(words, env, chosen, torch, python, hook)
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
        log_folders=_log_folders(folder, words, given),
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
    _gather(folder, time.monotonic() - began, kills, watch.pids)
    _close(folder, manifest, ended, watch.hangs, spent)
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


def _manifest(
    words: Sequence[str],
    env: Mapping[str, str],
    chosen: Sequence[Setting],
    torch: str | None,
    python: str | None,
    hook: bool,
) -> dict[str, object]:
    redactor = Redactor()
    return {
        "schema": MANIFEST_SCHEMA,
        "tool": tool(),
        "started": now(),
        "host": socket.gethostname(),
        "cwd": os.getcwd(),
        "command": redactor.words(words),
        "python": python,
        "torch": torch,
        "hook": hook,
        "variables": {s.name: {"value": s.value, "set_by": "user" if s.kept else "run"} for s in chosen},
        "environment": redactor.env({k: v for k, v in env.items() if k.startswith(SHOWN)}),
    }


SHOWN = (
    *("CUDA_", "NCCL_", "TORCH", "PYTORCH_", "SLURM_", "MASTER_"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "OMP_", "PET_"),
)
"""Beginnings of the names of variables that bear on training; no other is kept."""


def _log_folders(folder: Path, words: Sequence[str], given: Mapping[str, str]) -> list[Path]:
    """Where the ranks' logs grow, so that a launcher that shows nothing is not taken for a job that hangs."""
    found = [given["PET_LOG_DIR"]] if "PET_LOG_DIR" in given else []
    for i, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ("--log-dir", "--log_dir"):
            found.append(value or (words[i + 1] if i + 1 < len(words) else ""))
    return [Path(f) for f in found if f]


def _announce(folder: Path, torch: str | None, chosen: Sequence[Setting], verbose: bool) -> None:
    kept = [s.name for s in chosen if s.kept]
    yours = f"; left as you set them: {', '.join(kept)}" if kept else ""
    _say(f"records to {folder} (torch {torch or 'not found'}){yours}")
    if verbose:
        for setting in chosen:
            _say(f"{setting.name}={setting.value}{' (yours)' if setting.kept else ''}: {setting.why}")


def _gather(folder: Path, seconds: float, kills: int | None, pids: Collection[int]) -> None:
    """What the host tells after the end."""
    with suppress(OSError):
        lines = evidence.kernel_lines(seconds + 5, pids)
        if lines:
            (folder / "kernel.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        after = evidence.oom_kills()
        if kills is not None and after is not None and after > kills:
            text = f"memory.events of {socket.gethostname()}: oom_kill {after - kills}\n"
            (folder / "memory.events.log").write_text(text, encoding="utf-8")


def _close(folder: Path, manifest: dict[str, object], ended: Ended, hangs: int, spent: float) -> None:
    left = redact(p for p in folder.glob("logs/**/*") if p.is_file())
    told = {
        "not_redacted": list(left),
        "ended": now(),
        "seconds": round(ended.seconds, 3),
        "own_cpu_seconds": round(spent, 3),
        "status": ended.status,
        "signals": list(ended.signals),
        "hangs": hangs,
        "stopped_by_run": ended.stopped,
    }
    with suppress(OSError):
        write_json(folder / RUN, {**manifest, **told})
        drop_empty(folder)


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
