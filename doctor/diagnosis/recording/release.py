"""Which torch a command will run with: asked of its own interpreter, in a child, without importing torch."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from fsdp_doctor import process
from fsdp_doctor.tables.recorder_variables import Release

ASK = "import importlib.metadata as m; print(m.version('torch'))"
SECONDS = 15.0
"""For an interpreter on a busy file server to start."""
SHEBANG_LIMIT = 512
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:\.exe)?\Z")
SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "torchtitan")
"""Programs whose first line names the interpreter of the environment that they belong to."""


def interpreter(words: Sequence[str], path: str | None) -> str | None:
    """The interpreter that a command starts, or whose environment its launcher belongs to; None where unseen.

    `path` is the PATH of the command. srun's and mpirun's own options are passed over: the first word that
    is a Python or a launcher decides.
    """
    for word in words:
        name = PurePath(word).name
        found = shutil.which(word, path=path) if PYTHON.match(name) or name in SCRIPTS else None
        if found is None:
            continue
        return found if PYTHON.match(name) else _shebang(found, path)
    return None


def _shebang(script: str, path: str | None) -> str | None:
    try:
        with open(script, "rb") as file:
            first = file.read(SHEBANG_LIMIT)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = first[2:].split(b"\n")[0].decode("utf-8", "replace").split()
    if not words:
        return None
    if PurePath(words[0]).name == "env":
        return next((shutil.which(w, path=path) for w in words[1:] if not w.startswith("-")), None)
    if PYTHON.match(PurePath(words[0]).name):
        return words[0]
    # pip writes `#!/bin/sh` where the path is too long: the interpreter stands beside the script.
    beside = Path(script).with_name("python")
    return str(beside) if beside.exists() else None


def version(python: str | None, env: Mapping[str, str]) -> str | None:
    """The version of the torch that an interpreter would import; None where there is none or no answer."""
    outcome = process.run([python or sys.executable, "-c", ASK], SECONDS, env=dict(env), stdout_limit=4096)
    if outcome.returncode != 0:
        return None
    return outcome.stdout.decode("utf-8", "replace").strip() or None


def release(text: str | None) -> Release | None:
    """Major and minor of a version such as 2.13.0+cu130."""
    match = re.match(r"(\d{1,3})\.(\d{1,3})", text or "")
    return (int(match[1]), int(match[2])) if match else None


def search_path(env: Mapping[str, str]) -> str | None:
    """PATH as the command gets it."""
    return env.get("PATH", os.defpath)
