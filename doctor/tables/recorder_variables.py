"""Variables by which torch and NCCL write down what a hang leaves no trace of, by the release reading them.

Sources: strings and defaults in the wheels of torch 2.1.2, 2.2.2, 2.4.1, 2.6.0, 2.8.0 and 2.13.0; PyTorch's
"Flight Recorder for debugging stuck jobs"; NCCL's "Environment variables".
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKED_ON = "2026-12-02"

Release = tuple[int, int]

RING = 2000
"""Operations that a rank's recorder keeps; torch's own default of the releases that have one."""


@dataclass(frozen=True, slots=True)
class RecorderVariable:
    """One variable, the value that `run` gives it, and the releases of torch that read it."""

    name: str
    value: str
    """`{run}` is the folder of the run, `{local}` a short folder on a local disk (for named pipes)."""
    why: str
    since: Release | None = None
    """The first release that reads it; None where it does not depend on torch."""
    until: Release | None = None
    """The last release for which it is the name to use."""
    same_as: tuple[str, ...] = ()
    """Other names of the same thing: where the user has set one, this is left alone."""


VARIABLES: tuple[RecorderVariable, ...] = (
    RecorderVariable(
        "TORCH_FR_BUFFER_SIZE",
        str(RING),
        "Flight Recorder keeps the last collectives of each rank",
        since=(2, 8),
        same_as=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    ),
    RecorderVariable(
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        str(RING),
        "Flight Recorder keeps the last collectives of each rank",
        since=(2, 2),
        until=(2, 7),
    ),
    RecorderVariable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "ranks write their Flight Recorder when a collective times out",
        since=(2, 2),
    ),
    RecorderVariable(
        "TORCH_FR_DUMP_TEMP_FILE",
        "{run}/flight/rank_",
        "where the Flight Recorder is written",
        since=(2, 9),
        same_as=("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
    ),
    RecorderVariable(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "{run}/flight/rank_",
        "where the Flight Recorder is written",
        since=(2, 2),
        same_as=("TORCH_FR_DUMP_TEMP_FILE",),
    ),
    RecorderVariable(
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "{local}/pipe_",
        "a pipe for each rank, by which its Flight Recorder can be asked for",
        since=(2, 4),
    ),
    RecorderVariable(
        "NCCL_DEBUG", "WARN", "NCCL says what went wrong", same_as=("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
    ),
    RecorderVariable(
        "NCCL_DEBUG_FILE",
        "{run}/nccl/%h.%p.log",
        "NCCL's messages of each process in a file of its own",
        same_as=("NCCL_DEBUG",),
    ),
    RecorderVariable("PYTHONFAULTHANDLER", "1", "Python prints where it was when it crashes"),
    RecorderVariable("PYTHONUNBUFFERED", "1", "the last lines before a crash are not lost"),
)
"""In the order in which they are shown."""

TORCHRUN_VARIABLES: tuple[RecorderVariable, ...] = (
    RecorderVariable("PET_LOG_DIR", "{run}/logs", "torchrun keeps the output of each rank"),
    RecorderVariable("PET_TEE", "3", "and still shows it"),
    RecorderVariable(
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "[rank${rank}]:",
        "each line says its rank",
        since=(2, 2),
    ),
)
"""Only where the command starts torchrun (or accelerate, which starts it) without options for its logs."""
