"""What is wrong on disk, and what torch makes of it: an error, or wrong values without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdp_doctor.ckpt.compat.question import DCP, PER_RANK, Question, some
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, FileRole, Format
from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem, ProblemKind
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

K = ProblemKind
CAUSES: Mapping[ProblemKind, Cause] = {
    K.NOT_FOUND: Cause.UNREADABLE,
    K.NOT_A_CHECKPOINT: Cause.UNREADABLE,
    K.UNSUPPORTED: Cause.UNREADABLE,
    K.SEVERAL: Cause.UNREADABLE,
    K.CHANGED: Cause.UNFINISHED,
    K.UNFINISHED: Cause.UNFINISHED,
    K.METADATA_DAMAGED: Cause.METADATA,
    K.METADATA_STRANGE: Cause.METADATA,
    K.FILE_MISSING: Cause.FILES_LOST,
    K.FILE_SHORT: Cause.FILES_LOST,
    K.FILE_FOREIGN: Cause.FOREIGN,
    K.FILE_STALE: Cause.STALE,
    K.FILE_NEWER: Cause.STEPS_MIXED,
    K.FILE_SPREAD: Cause.STEPS_MIXED,
    K.STEPS_MIXED: Cause.STEPS_MIXED,
    K.FILE_SPECIAL: Cause.FILES_LOST,
    K.FILE_LINK: Cause.FILES_LOST,
    K.FILE_FORBIDDEN: Cause.FILES_LOST,
    K.NAME_UNSAFE: Cause.UNSAFE,
    K.NAME_UNDECODABLE: Cause.STALE,
    K.RANK_MISSING: Cause.FILES_LOST,
    K.SHARD_MISSING: Cause.FILES_LOST,
    K.RANKS_MIXED: Cause.STEPS_MIXED,
    K.COVERAGE_GAP: Cause.COVERAGE,
    K.COVERAGE_OVERLAP: Cause.COVERAGE,
    K.CHUNK_OUTSIDE: Cause.COVERAGE,
    K.CHUNK_UNPLACED: Cause.COVERAGE,
    K.REGIONS_OVERLAP: Cause.COVERAGE,
    K.STORAGE_SIZE: Cause.FILES_LOST,
    K.DTYPE_CONFLICT: Cause.STEPS_MIXED,
    K.PICKLE_DAMAGED: Cause.METADATA,
    K.PICKLE_HOSTILE: Cause.UNSAFE,
    K.ZIP_DAMAGED: Cause.FILES_LOST,
    K.ZIP_HOSTILE: Cause.UNSAFE,
    K.HEADER_DAMAGED: Cause.METADATA,
    K.JSON_DAMAGED: Cause.METADATA,
    K.CHECKSUM: Cause.CHECKSUM,
    K.TOO_LARGE: Cause.UNREADABLE,
    K.MEMORY: Cause.UNREADABLE,
    K.DEADLINE: Cause.UNREADABLE,
    K.READER_FAILED: Cause.UNREADABLE,
}
UNKNOWN = frozenset({K.TOO_LARGE, K.MEMORY, K.DEADLINE, K.READER_FAILED, K.CHANGED, K.FILE_FORBIDDEN})
"""The doctor could not read it; torch may."""
SILENT = frozenset({K.COVERAGE_GAP, K.COVERAGE_OVERLAP, K.STEPS_MIXED, K.CHECKSUM, K.RANKS_MIXED})
"""torch raises nothing: values stay what they were, or come from another step."""
NO_METADATA = (
    "AssertionError: metadata is None; global metadata read failed: [Errno 2] No such file or directory"
)
READER = "PytorchStreamReader failed reading zip archive: failed finding central directory"
EXPECTED: Mapping[Cause, str] = {
    Cause.UNREADABLE: "a checkpoint that can be read",
    Cause.UNSAFE: "only classes that a checkpoint needs, and files inside of it",
    Cause.UNFINISHED: "a finished save: the metadata is written last",
    Cause.METADATA: "metadata as torch wrote it",
    Cause.FILES_LOST: "every file that the metadata names, in full length",
    Cause.FOREIGN: "files of one save",
    Cause.COVERAGE: "chunks that cover every tensor once",
    Cause.STEPS_MIXED: "files of one step of one run",
    Cause.CHECKSUM: "bytes as they were written",
    Cause.STALE: "only files that the metadata names",
}
FIXES: Mapping[Cause, tuple[str, str | None]] = {
    Cause.UNREADABLE: ("Name the folder or file of one checkpoint", "fsdp-doctor ckpt latest {parent}"),
    Cause.UNSAFE: ("Do not load it: dcp.load and torch.load(weights_only=False) run what it names", None),
    Cause.UNFINISHED: (
        "Resume from the newest finished save; if an asynchronous save is still running, wait for it",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.METADATA: (
        "Copy the metadata again from where it was saved, or resume from the save before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.FILES_LOST: (
        "Copy the named files again from where they were saved, or resume from the save before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.FOREIGN: (
        "Copy the named file again from the save that the metadata belongs to, or resume from the save "
        "before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.COVERAGE: (
        "Do not resume from it: restore the metadata and files of one save, or take the save before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.STEPS_MIXED: (
        "Do not resume from it: copy all files of one save together, or take the save before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.CHECKSUM: (
        "Copy the named file again, or resume from the save before",
        "fsdp-doctor ckpt latest {parent}",
    ),
    Cause.STALE: ("Save into an empty folder for each step; these files may be removed", None),
}


def rules(question: Question) -> Iterator[Obstacle]:
    """Each problem that the reader found."""
    for problem in question.index.problems:
        if problem.kind is K.LOCAL_SLICES or _own_slices(question, problem):
            continue  # what it does depends on the way: see `parting` and `optimizer`
        yield _obstacle(question, problem)


def _own_slices(question: Question, problem: Problem) -> bool:
    """Ranks hold state of other parameters: FSDP1's own slices, of which a rank has some and not all."""
    apart = question.index.format in PER_RANK and problem.kind is K.RANKS_MIXED
    return apart and bool(problem.tensors) and all(".state." in f".{t}" for t in problem.tensors)


def _obstacle(question: Question, problem: Problem) -> Obstacle:
    cause, index = CAUSES[problem.kind], question.index
    effect = _effect(problem)
    if problem.kind is K.FILE_NEWER and _of_one_step(index):
        effect = Effect.NOTE
    fix, command = FIXES[cause]
    if effect is Effect.NOTE:
        fix, command = "", None
    hit = f" ({some(problem.tensors)})" if problem.tensors else ""
    named = f"{problem.path}: " if problem.path and problem.path not in problem.detail else ""
    return question.obstacle(
        cause,
        effect,
        f"{named}{problem.detail}{hit}",
        EXPECTED[cause],
        message=message(index, problem) if effect is Effect.FAILS else "",
        fix=fix,
        command=command.format(parent=index.path if problem.kind is K.SEVERAL else _parent(index.path))
        if command
        else None,
        path=problem.path or None,
        tensor=problem.tensors[0] if problem.tensors else None,
        examples=problem.tensors[:8],
    )


def _of_one_step(index: CheckpointIndex) -> bool:
    """Every file that is newer than the metadata holds the optimizer's step, and all steps agree.

    Then the files were copied later, and are not of a later save.
    """
    written = index.dcp.modified if index.dcp is not None else None
    data = [f for f in index.files if f.role is FileRole.DATA and f.referenced]
    if written is None or len({s for f in data for s in f.steps}) != 1:
        return False
    return all(f.steps for f in data if f.modified is not None and f.modified > written)


def _effect(problem: Problem) -> Effect:
    if problem.kind in UNKNOWN:
        return Effect.UNKNOWN
    if problem.harm is Harm.NOTE:
        return Effect.NOTE
    if problem.kind in SILENT and problem.harm is Harm.BROKEN:
        return Effect.WRONG
    if problem.harm is Harm.BROKEN or problem.harm is Harm.UNSAFE:
        return Effect.FAILS if problem.harm is Harm.BROKEN else Effect.WRONG
    return Effect.LOST


def message(index: CheckpointIndex, problem: Problem) -> str:
    """What torch prints, by format and kind; "" where it prints nothing of use."""
    if problem.kind in (K.UNFINISHED, K.NOT_A_CHECKPOINT, K.NOT_FOUND):
        return NO_METADATA
    if problem.kind in (K.METADATA_DAMAGED, K.PICKLE_DAMAGED) and index.format in DCP:
        return "AssertionError: metadata is None; global metadata read failed"
    if problem.kind is K.SHARD_MISSING and index.format is Format.DCP_SAFETENSORS:
        return "Size mismatch between saved "
    if problem.kind in (K.FILE_MISSING, K.RANK_MISSING, K.SHARD_MISSING):
        return "No such file or directory"
    if problem.kind in (K.FILE_SHORT, K.ZIP_DAMAGED, K.STORAGE_SIZE):
        if index.format in (Format.SAFETENSORS, Format.DCP_SAFETENSORS):
            return "Error while deserializing header: incomplete metadata, file not fully covered"
        empty = any(f.path == problem.path and f.size == 0 for f in index.files)
        return "EOFError" if empty and index.format in DCP else READER
    if problem.kind is K.FILE_FOREIGN and index.format not in PER_RANK:
        return "Weights only load failed"
    return ""


def _parent(path: str) -> str:
    head = path.rstrip("/").rpartition("/")[0]
    return head or "."
