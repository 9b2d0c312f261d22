"""Folders and files that are no checkpoint, or dangerous ones."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP001", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def not_a_checkpoint(facts: Facts, options: Options) -> Iterator[Finding]:
    """Not a checkpoint that can be read.

    What: Whether the path holds one checkpoint in a format that is known, and could be read within its
        limits.
    Why: A run that resumes from a folder of several checkpoints, from a TorchScript file or from an empty
        path starts from zero or fails on all ranks after minutes of start-up.
    Fix: Name the folder of one checkpoint; `fsdp-doctor ckpt latest` finds the newest complete one.
    Sources: Torch/distributed/checkpoint/filesystem.py (read_metadata).
    """
    yield from speak(facts, Cause.UNREADABLE, reads=False)


@check("CKP002", Row.START, needs=(Loading,), tags=("checkpoint",))
def unsafe_content(facts: Facts, options: Options) -> Iterator[Finding]:
    """Loading the checkpoint would run code or leave its folder.

    What: Globals that the pickles name, and paths in the metadata that lead out of the checkpoint.
    Why: Dcp.load reads .metadata with plain pickle and its byte items with weights_only=False: whoever
        wrote the folder runs code on every rank.
    Fix: Do not load it; get the weights as safetensors from whoever made them.
    Sources: Torch/distributed/checkpoint/filesystem.py, default_planner.py (load_bytes).
    """
    yield from speak(facts, Cause.UNSAFE, reads=False)
