"""Read a checkpoint in this process: what the child runs, under its memory limit."""

from __future__ import annotations

import os
import time

from fsdp_doctor.ckpt.conclude import conclude
from fsdp_doctor.ckpt.draft import Draft, Unreadable
from fsdp_doctor.ckpt.limits import FILES
from fsdp_doctor.ckpt.manifest_file import add_manifest
from fsdp_doctor.ckpt.path import failed, is_remote
from fsdp_doctor.ckpt.recognise import recognise
from fsdp_doctor.ckpt.store import LocalStore, Store
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

__all__ = ["is_remote", "open_store", "read_here"]


def read_here(path: str, *, values: bool = True) -> CheckpointIndex:
    """The index of a checkpoint. Everything wrong with it is a problem of the index; never raises `OSError`.

    `values` also reads small objects inside DCP's data files: parameter groups, steps, RNG states.
    """
    began = time.monotonic()
    try:
        store = open_store(path)
        nodes, cut = store.nodes()
    except FileNotFoundError:
        return failed(path, ProblemKind.NOT_FOUND, "there is no such file or folder")
    except OSError as error:
        kind = ProblemKind.FILE_LINK if os.path.islink(path) else ProblemKind.FILE_FORBIDDEN
        return failed(path, kind, f"it cannot be read: {error.strerror or error}")
    draft = Draft(store, nodes)
    draft.read_values = values
    if cut:
        draft.cut(f"more than {FILES} names in the folder")
    try:
        recognise(draft)
    except Unreadable as error:
        draft.problems.append(error.problem)
    except MemoryError:
        draft.problem(ProblemKind.MEMORY, Harm.BROKEN, "describing it takes more memory than there is")
    add_manifest(draft)
    return conclude(draft, time.monotonic() - began)


def open_store(path: str) -> Store:
    """What holds the path. Raises `OSError`."""
    if is_remote(path):
        from fsdp_doctor.ckpt.remote import RemoteStore

        return RemoteStore(path)
    return LocalStore(path)
