"""Which keyword argument of the batch function is the number of sequences, and which is their length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fsdp_doctor.memory.job import Job

BATCH = (
    "batch",
    "batch_size",
    "bs",
    "bsz",
    "micro_batch_size",
    "microbatch_size",
    "per_device_batch_size",
    "micro_batch",
    "microbatch",
    "mbs",
    "samples",
    "rows",
    "b",
    "n",
)
SEQ = (
    "seq",
    "seq_len",
    "seqlen",
    "seq_length",
    "sequence_length",
    "sequence",
    "length",
    "context",
    "context_length",
    "block_size",
    "max_seq_len",
    "max_length",
    "tokens",
    "t",
)
NAMES = {"--max-batch": BATCH, "--max-seq": SEQ}
OWN = {"--max-batch": "--batch-arg", "--max-seq": "--seq-arg"}
COARSE = 128
"""The largest step in which lengths are tried: kernels and users like lengths that it divides."""


class ScaleError(ValueError):
    """The batch cannot be scaled as asked; the message says what to give."""


@dataclass(frozen=True, slots=True)
class Scale:
    """One argument of the batch function that can be made larger."""

    flag: str
    name: str
    value: int
    """As the configuration has it."""
    step: int = 1
    """Values that are tried are multiples of it."""

    def job(self, job: Job, value: int) -> Job:
        """The same job with another value."""
        return replace(job, batch_args={**job.batch_args, self.name: value})


def scale(flag: str, named: str | None, takes: Mapping[str, object], job: Job) -> Scale:
    """The argument that `--max-batch` or `--max-seq` makes larger. Raises `ScaleError`.

    `named` is what the user says. Else it is the one whose name is known, in --batch-args or in the batch
    function's signature, `takes`, which maps names to defaults.
    """
    given = {**takes, **job.batch_args}
    name = named or next((n for n in NAMES[flag] if n in given), None)
    what = "sequences" if flag == "--max-batch" else "their length"
    said = job.batch or "the batch function of hf:"
    has = ", ".join(takes) or "none"
    if name is None:
        raise ScaleError(
            f"{flag}: {said} has no keyword argument that is known as the number of {what} "
            f"(its arguments after the device: {has}); give it one and name it with {OWN[flag]}"
            if flag == "--max-batch"
            else f"{flag}: {said} has no keyword argument that is known as the length of sequences "
            f"(its arguments after the device: {has}); give it one and name it with {OWN[flag]}"
        )
    value = given.get(name)
    if name not in given:
        raise ScaleError(f"{OWN[flag]} {name}: {said} takes no argument {name!r} (it takes: {has})")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScaleError(
            f"{flag}: the argument {name!r} of {said} has no number to start from; "
            f"give its present value with --batch-args '{{\"{name}\": 1}}'"
        )
    return Scale(flag, name, value, 1 if flag == "--max-batch" else _step(value))


def _step(value: int) -> int:
    """The largest power of two up to COARSE that divides the present length."""
    step = 1
    while step < COARSE and value % (2 * step) == 0:
        step *= 2
    return step
