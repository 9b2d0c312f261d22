"""The folder of a run: what lies where in it."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

PARTS = ("flight", "nccl", "stacks", "journal")
"""Folders that those who write into them expect to be there."""
CONSOLE = "console.log"
RUN = "run.json"
MANIFEST_SCHEMA = "fsdp-doctor-run/1"


class FolderError(Exception):
    """The folder cannot be used; the message is one line for the user."""


def default_name(now: datetime) -> str:
    """A name for the folder of a run that starts now."""
    return f"fsdp-doctor-run-{now:%Y%m%d-%H%M%S}"


def prepare(path: Path, variables: Mapping[str, str], *, ranks: bool = False) -> Path:
    """Make the folder of a run and return it; below `path` for each task, where several share it.

    `ranks`: each task is a rank, and no launcher of several; its folder then says so.

    Raises `FolderError` where it cannot be written, or holds another run.
    """
    path = path.absolute()
    number = task(variables)
    if number is not None:
        path = path / f"{socket.gethostname()}.{'rank' if ranks else 'task'}_{number}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / RUN).exists():
            raise FolderError(f"{path} holds another run; name a new folder by --out")
        for part in PARTS:
            (path / part).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError:
        raise FolderError(f"{path} is no folder") from None
    except OSError as error:
        raise FolderError(f"{path} cannot be written: {error.strerror or error}") from None
    if re.search(r"[\s:]", str(path)):
        raise FolderError(f"{path}: torch and NCCL want a path without blanks and colons")
    return path


def task(variables: Mapping[str, str]) -> int | None:
    """Which of several tasks this is, as below `srun fsdp-doctor run`; None for the only one."""
    for count, own in (
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
    ):
        total, number = variables.get(count, ""), variables.get(own, "")
        if total.isdigit() and int(total) > 1 and number.isdigit():
            return int(number)
    return None


def write_json(path: Path, value: object) -> None:
    """Write a whole file or none."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def drop_empty(path: Path) -> None:
    """Remove what nobody wrote into, so that a folder shows what there is."""
    for part in PARTS:
        folder = path / part
        for file in folder.glob("*"):
            if file.is_file() and file.stat().st_size == 0:
                file.unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
