"""Tensors that are not wholly there, and bytes that changed."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP009", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def coverage(facts: Facts, options: Options) -> Iterator[Finding]:
    """Chunks do not cover a tensor.

    What: That the chunks of each tensor lie inside of it, do not overlap, have a place in a file and
        cover it.
    Why: Dcp.load fills what there is and leaves the rest as it was initialised, without an error.
    Fix: Do not resume from it; restore the metadata and files of one save.
    Sources: Torch/distributed/checkpoint/planner_helpers.py (create_read_items_for_chunk_list).
    """
    yield from speak(facts, Cause.COVERAGE, reads=False)


@check("CKP010", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def checksum(facts: Facts, options: Options) -> Iterator[Finding]:
    """Bytes changed since they were written.

    What: Checksums, where `--verify` or a manifest gives them.
    Why: Torch does not verify the checksums of its archives: a flipped bit in a weight loads.
    Fix: Copy the named file again.
    Sources: Torch/serialization.py; zip format.
    """
    yield from speak(facts, Cause.CHECKSUM, reads=False)
