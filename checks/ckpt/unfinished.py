"""Saves that did not finish, and metadata that is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP003", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def unfinished(facts: Facts, options: Options) -> Iterator[Finding]:
    """The save did not finish.

    What: Whether the metadata, which a save writes last and by rename, is there.
    Why: A job killed while saving leaves shards without .metadata; dcp.load says `metadata is None`,
        which names no cause.
    Fix: Resume from the newest complete save (`fsdp-doctor ckpt latest`); wait where an asynchronous save
        still runs.
    Sources: Torch/distributed/checkpoint/filesystem.py (finish).
    """
    yield from speak(facts, Cause.UNFINISHED, reads=False)


@check("CKP004", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def metadata_damaged(facts: Facts, options: Options) -> Iterator[Finding]:
    """The metadata is damaged.

    What: Whether .metadata, safetensors headers and indices can be read and do not contradict themselves.
    Why: Without metadata nothing tells which bytes of the shards are which tensor, though the shards may
        be whole.
    Fix: Copy the metadata again, or resume from the save before.
    Sources: Torch/distributed/checkpoint/metadata.py.
    """
    yield from speak(facts, Cause.METADATA, reads=False)
