"""The failure table: seven symptoms, what is documented about them and what this tool adds."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.findings import Row


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: the symptom as users report it, the documented cause and fix, and our addition."""

    row: Row
    symptom: str
    cause: str
    fix: str
    adds: str


FAILURE_TABLE: tuple[TableRow, ...] = (
    TableRow(
        Row.NCCL,
        "NCCL timeout or connection closed",
        "communication between GPUs is abnormal",
        "check driver versions, firewall, and that every GPU is recognised",
        "which rank entered which collective and why the others wait; a timeout is mostly the symptom "
        "of one rank's exception, OOM, stall or divergence",
    ),
    TableRow(
        Row.OOM,
        "out of memory",
        "sharding is not in effect, or the batch is too large",
        "FULL_SHARD, a smaller batch, gradient accumulation",
        "which unit or tensor makes the peak and the GiB each change saves; accumulation under no_sync "
        "costs memory instead of saving it",
    ),
    TableRow(
        Row.SLOW,
        "training is slow",
        "data loading or communication latency",
        "DataLoader(pin_memory=True), check NVLink",
        "measured shares of the step (data, exposed communication, compute, launch, checkpoint) and the "
        "slow rank or link",
    ),
    TableRow(
        Row.SAVE,
        "cannot save the model",
        "state_dict() is called directly and memory explodes",
        "let FSDP's state dict handle the shards",
        "a plain full state_dict() under FSDP is itself the explosion: save sharded with DCP, or full "
        "with CPU offload on rank 0 only",
    ),
    TableRow(
        Row.LOAD,
        "loading a checkpoint fails",
        "the topology differs",
        "the same world_size and sharding_strategy as at save",
        "true for LOCAL_STATE_DICT and per-rank files only; DCP and full files reshard: says which case "
        "this is, and converts",
    ),
    TableRow(
        Row.START,
        "does not start",
        "not documented",
        "not documented",
        "versions, rendezvous, ports, device pinning, arguments",
    ),
    TableRow(
        Row.WRONG,
        "runs, but the result is wrong or NaN",
        "not documented",
        "not documented",
        "diverging ranks, dtype, stale or partial weights, silent corruption",
    ),
)


def table_row(row: Row) -> TableRow:
    """The entry of one row."""
    return next(r for r in FAILURE_TABLE if r.row is row)
