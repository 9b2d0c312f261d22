"""What was found wrong with a checkpoint while it was read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Harm(str, Enum):
    """What a problem means for whoever loads the checkpoint."""

    BROKEN = "broken"
    """Something is lost: loading fails, or gives wrong values."""
    UNSAFE = "unsafe"
    """Loading it may run code or reach files outside of it."""
    DOUBT = "doubt"
    """May be all right; someone should look."""
    NOTE = "note"
    """Normal, and worth knowing."""


class ProblemKind(str, Enum):
    """One kind per cause."""

    # the checkpoint as a whole
    NOT_FOUND = "not_found"
    NOT_A_CHECKPOINT = "not_a_checkpoint"
    UNSUPPORTED = "unsupported"
    """A known format that is no checkpoint or that this tool does not read: TorchScript, tar."""
    UNFINISHED = "unfinished"
    """Data without the metadata that a save writes last."""
    SEVERAL = "several"
    """The folder holds several checkpoints."""
    CHANGED = "changed"
    """Files changed while they were read."""
    # metadata
    METADATA_DAMAGED = "metadata_damaged"
    METADATA_STRANGE = "metadata_strange"
    """It can be read and is not what its name promises, or contradicts itself."""
    # files
    FILE_MISSING = "file_missing"
    FILE_SHORT = "file_short"
    FILE_FOREIGN = "file_foreign"
    """No item begins where metadata says: the file is of another save."""
    FILE_STALE = "file_stale"
    """A data file that nothing refers to and that holds something."""
    FILE_NEWER = "file_newer"
    """A data file was modified after the metadata that describes it."""
    FILE_SPREAD = "file_spread"
    """Modification times of one save lie far apart."""
    FILE_SPECIAL = "file_special"
    """A FIFO, device, socket or folder stands where a file should."""
    FILE_LINK = "file_link"
    """A symbolic link; broken or leading out of the checkpoint."""
    FILE_FORBIDDEN = "file_forbidden"
    """No permission, or an input error."""
    NAME_UNSAFE = "name_unsafe"
    """Metadata names a file outside of the checkpoint or with a strange name; it was not opened."""
    NAME_UNDECODABLE = "name_undecodable"
    RANK_MISSING = "rank_missing"
    """One rank's file of a format with a file per rank."""
    SHARD_MISSING = "shard_missing"
    """Shard numbers have a gap, or fewer are there than the names say."""
    RANKS_MIXED = "ranks_mixed"
    """Files per rank disagree about world size, mesh, keys or shapes."""
    STEPS_MIXED = "steps_mixed"
    """Files hold different steps."""
    # tensors
    COVERAGE_GAP = "coverage_gap"
    COVERAGE_OVERLAP = "coverage_overlap"
    CHUNK_OUTSIDE = "chunk_outside"
    CHUNK_UNPLACED = "chunk_unplaced"
    """Metadata names no place for it."""
    REGIONS_OVERLAP = "regions_overlap"
    """Two items claim the same bytes of a file."""
    STORAGE_SIZE = "storage_size"
    """A storage has other bytes than its dtype and count need."""
    DTYPE_CONFLICT = "dtype_conflict"
    """Files disagree about a tensor's dtype or shape."""
    LOCAL_SLICES = "local_slices"
    """Rank-local slices stored as if they were whole: data was lost at save."""
    # content
    PICKLE_DAMAGED = "pickle_damaged"
    PICKLE_HOSTILE = "pickle_hostile"
    """It names functions that run code."""
    ZIP_DAMAGED = "zip_damaged"
    ZIP_HOSTILE = "zip_hostile"
    """Overlapping, compressed, encrypted or far too many entries."""
    HEADER_DAMAGED = "header_damaged"
    """Of a safetensors file."""
    JSON_DAMAGED = "json_damaged"
    CHECKSUM = "checksum"
    """Stored bytes do not match their checksum (`--verify`)."""
    # limits
    TOO_LARGE = "too_large"
    MEMORY = "memory"
    DEADLINE = "deadline"
    READER_FAILED = "reader_failed"
    """This tool's own fault."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One cause, however many tensors it hits."""

    kind: ProblemKind
    harm: Harm
    detail: str
    """One sentence with the figures: what is there and what should be."""
    path: str = ""
    """File or folder relative to the checkpoint."""
    tensors: tuple[str, ...] = ()
    """Keys that are hit, at most 20."""
    tensor_count: int = 0
    """How many are hit."""
    bytes: int | None = None
    """Bytes that are lost or in doubt."""
    rank: int | None = None
    step: int | None = None
