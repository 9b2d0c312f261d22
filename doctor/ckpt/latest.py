"""Find the newest whole checkpoint of a run, and why newer ones are not whole."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace

from fsdp_doctor.ckpt.path import text
from fsdp_doctor.ckpt.read import read
from fsdp_doctor.ckpt.recognise import looks
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format
from fsdp_doctor.subjects.checkpoint_problem import Harm
from fsdp_doctor.subjects.checkpoint_run import Candidate, RunFolder

NUMBERED = re.compile(r"(?:step|checkpoint|global_step|iter|iteration|ckpt|epoch|tag)[-_=]?(\d{1,18})", re.I)
ONLY_NUMBER = re.compile(r"\D*(\d{1,18})\D*")
FILES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")
TRACKERS = ("latest", "latest_universal", "latest_checkpointed_iteration.txt", "last_checkpoint")
DEPTH = 3
NAMES = 20_000
READ = 50
"""Candidates that are read before the search is given up."""


def find(folder: str, deadline: float) -> RunFolder:
    """Look through a run's folder. Raises `OSError` where it cannot be listed; `deadline` in seconds."""
    until = time.monotonic() + deadline
    ordered = sorted(_candidates(folder, 0), key=_newest, reverse=True)
    judged: list[Candidate] = []
    for number, candidate in enumerate(ordered):
        if number >= READ or time.monotonic() > until or any(c.complete for c in judged):
            judged.append(candidate)
        else:
            judged.append(_judge(candidate, max(1.0, until - time.monotonic())))
    tracker, tracked = _tracker(folder)
    return RunFolder(text(folder), tuple(judged), tracker, tracked)


def _newest(candidate: Candidate) -> tuple[bool, int, float]:
    return candidate.step is not None, candidate.step or 0, candidate.modified or 0.0


def _judge(candidate: Candidate, deadline: float) -> Candidate:
    index = read(candidate.path, deadline, values=False)
    step = candidate.step if candidate.step is not None else index.step
    return replace(
        candidate,
        read=True,
        step=step,
        complete=_whole(index),
        format=index.format,
        why=_why(index),
    )


def _whole(index: CheckpointIndex) -> bool:
    broken = any(p.harm in (Harm.BROKEN, Harm.UNSAFE) for p in index.problems)
    return index.format is not Format.UNKNOWN and bool(index.tensors) and not broken


def _why(index: CheckpointIndex) -> str:
    broken = [p for p in index.problems if p.harm in (Harm.BROKEN, Harm.UNSAFE)]
    if not broken:
        return "" if index.tensors else "it holds no tensors"
    more = f" (and {len(broken) - 1} more problems)" if len(broken) > 1 else ""
    return broken[0].detail + more


def _candidates(folder: str, depth: int) -> list[Candidate]:
    """Checkpoints in a folder; folders that are none themselves are looked into."""
    found: list[Candidate] = []
    files: set[str] = set()
    folders: list[os.DirEntry[str]] = []
    with os.scandir(folder) as names:
        for number, entry in enumerate(names):
            if number >= NAMES:
                break
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry)
            elif entry.is_file(follow_symlinks=False):
                files.add(entry.name)
    if depth == 0 and looks(files) and not any(_step(f.name) is not None for f in folders):
        single = [f for f in sorted(files) if f.endswith(FILES)]
        if len(single) < 2 or any("rank" in f for f in single) or any(f.startswith("__") for f in files):
            return [_candidate(folder)]
    found += [
        _candidate(os.path.join(folder, f)) for f in files if f.endswith(FILES) and _step(f) is not None
    ]
    for entry in folders:
        try:
            inner = {e.name: e.is_dir(follow_symlinks=False) for e in os.scandir(entry.path)}
        except OSError:
            continue
        names_of = {n for n, is_folder in inner.items() if not is_folder}
        parts = any(
            re.match(r"(?:pytorch_model|model)_fsdp_\d|optimizer_\d|zero$|sharded$|actor$", n) for n in inner
        )
        if looks(names_of) or parts or "trainer_state.json" in inner or _step(entry.name) is not None:
            found.append(_candidate(entry.path))
        elif depth + 1 < DEPTH:
            try:
                found += _candidates(entry.path, depth + 1)
            except OSError:
                continue
    return found


def _candidate(path: str) -> Candidate:
    try:
        modified: float | None = os.stat(path).st_mtime
    except OSError:
        modified = None
    return Candidate(path, _step(os.path.basename(path.rstrip("/"))), modified)


def _step(name: str) -> int | None:
    numbers = NUMBERED.findall(name)
    if numbers:
        # "epoch=0-step=3.ckpt": the step is the last of them.
        return int(numbers[-1])
    stem = name.split(".", 1)[0]
    found = ONLY_NUMBER.fullmatch(stem) if stem[:1].isdigit() else None
    return int(found[1]) if found else None


def _tracker(folder: str) -> tuple[str | None, str | None]:
    for name in TRACKERS:
        path = os.path.join(folder, name)
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= 400:
                with open(path, "rb") as file:
                    return name, text(file.read(400).decode("utf-8", "replace").strip())
        except OSError:
            continue
    return None, None
