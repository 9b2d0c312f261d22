"""Files that are missing, short, foreign, of another step, or left over."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP005", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def files_lost(facts: Facts, options: Options) -> Iterator[Finding]:
    """Files of the checkpoint are missing or cut off.

    What: That each file which the metadata names is there and reaches as far as its last item.
    Why: A copy that was interrupted, a full disk or a cleaned scratch folder loses one rank's part; torch
        names neither the tensors nor the bytes, and reports a cut file as `failed finding central
        directory`.
    Fix: Copy the named files again, or resume from the save before.
    Sources: Torch/distributed/checkpoint/filesystem.py (read_data).
    """
    yield from speak(facts, Cause.FILES_LOST, reads=False)


@check("CKP006", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def foreign_files(facts: Facts, options: Options) -> Iterator[Finding]:
    """A file belongs to another save.

    What: That an item begins at each place which the metadata names.
    Why: Folders that were merged or overwritten half-way mix files of two saves; torch says `Weights only
        load failed`, which points elsewhere.
    Fix: Copy the named file again from the save that the metadata belongs to.
    Sources: Torch/distributed/checkpoint/filesystem.py.
    """
    yield from speak(facts, Cause.FOREIGN, reads=False)


@check("CKP007", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def steps_mixed(facts: Facts, options: Options) -> Iterator[Finding]:
    """Files of the checkpoint come from different steps.

    What: The optimizer's step counters in the files, and files that are newer than the metadata.
    Why: Shards of another step of the same run have the same names, sizes and offsets: they load without
        an error, and the model is a mixture of two steps. Nothing that DCP stores links a file to its
        metadata: dates in its archives are zero, and their serialization_id depends on names and values
        alone. A shard that was copied with its date kept is therefore not seen where no step counter lies in
        it; a manifest (`write_manifest`) tells it.
    Fix: Copy all files of one save together, or resume from the save before.
    Sources: Torch/distributed/checkpoint/metadata.py, caffe2/serialize/inline_container.cc.
    """
    yield from speak(facts, Cause.STEPS_MIXED, reads=False)


@check("CKP008", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def stale_files(facts: Facts, options: Options) -> Iterator[Finding]:
    """Files that no metadata names.

    What: Data files in the folder that nothing refers to.
    Why: A save on fewer ranks into the same folder leaves the files of the others: they are not loaded,
        but mislead whoever counts files.
    Fix: Save each step into a folder of its own.
    Sources: Torch/distributed/checkpoint/filesystem.py.
    """
    yield from speak(facts, Cause.STALE, reads=False)
