"""What each kind of conclusion from Flight Recorder dumps is called, where it belongs and what mends it."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.findings import Row

CHECKED_ON = "2026-12-02"
SOURCES = (
    "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
    "torch/csrc/distributed/c10d/FlightRecorder.hpp (schema 1.0 to 2.10)",
    "torch/distributed/flight_recorder (torchfrtrace)",
    "real dumps of torch 2.11 (NCCL) and 2.13 (gloo)",
)


@dataclass(frozen=True, slots=True)
class RecorderCause:
    """One kind of conclusion."""

    code: str
    title: str
    row: Row | None
    fix: str
    command: str | None = None


ALIKE = (
    "Find the branch, the loop length or the early exit that only some ranks take before this call, and "
    "let every "
    "rank of the group make the same collectives in the same order"
)
DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL"
CAUSES = {
    "never entered": RecorderCause(
        "LOG900", "A rank never entered a collective that the others wait in", Row.NCCL,
        "Look at what this rank did instead (its stack, its log): a branch that it does not take, a loop "
        "that ended "
        "earlier, slow data, a save on one rank. Every rank must make the same collectives",
        "py-spy dump --pid PID",
    ),
    "other operation": RecorderCause(
        "LOG901", "Ranks called different collectives at the same point", Row.NCCL, ALIKE, DETAIL
    ),
    "other size": RecorderCause(
        "LOG902", "Ranks called a collective with different sizes", Row.NCCL,
        "Give all ranks tensors of the same size: pad the last batch (drop_last=True), gather sizes first, "
        "build the "
        "same model and wrap on every rank",
        DETAIL,
    ),
    "other dtype": RecorderCause(
        "LOG903", "Ranks called a collective with different types", Row.NCCL,
        "Use one type on all ranks: the same mixed-precision policy, the same autocast, the same checkpoint",
        DETAIL,
    ),
    "stalled": RecorderCause(
        "LOG904", "All ranks entered a collective and nobody finished it: network or device", Row.NCCL,
        "Check the hosts rather than the program: kernel log for Xid and NIC messages, link and port "
        "counters, NCCL's "
        "own warnings, then measure the links",
        "fsdp-doctor probe --pairs",
    ),
    "not finished": RecorderCause(
        "LOG905", "A rank's GPU did not finish a collective that the others finished", Row.NCCL,
        "Check this rank's GPU and its links: Xid and ECC in the kernel log, nvidia-smi -q, then leave the "
        "GPU out",
        "fsdp-doctor check",
    ),
    "not started": RecorderCause(
        "LOG905", "A rank's GPU never started a collective that the others run", Row.NCCL,
        "Find the kernel that occupies this rank's GPU: its stack with native frames, Xid in the kernel log",
        "py-spy dump --native --pid PID",
    ),
    "no dump": RecorderCause(
        "LOG906", "A rank that the others wait for left no dump", Row.NCCL,
        "Read this rank's own log and its host's kernel log: it most likely died (exception, out of "
        "memory, killed) "
        "before it could dump",
        "dmesg -T | grep -iE 'oom|killed|xid'",
    ),
    "crossed": RecorderCause(
        "LOG907", "Ranks take process groups in different order and wait for each other", Row.NCCL,
        "Call the collectives of the two groups in the same order on every rank, or wait for the first "
        "before the "
        "second is called",
    ),
    "late": RecorderCause(
        "LOG908", "A rank came to a collective after the others' time-out", Row.NCCL,
        "Find what this rank did before the call (data, a save, a compile, an evaluation) and share or "
        "shorten it; "
        "init_process_group(timeout=...) only where the time is legitimate",
    ),
    "unmatched": RecorderCause(
        "LOG909", "A send has no receive, or the reverse", Row.NCCL,
        "Post the missing half on the named rank: pipeline stages must agree on the number and order of "
        "micro-batches",
    ),
    "undecided": RecorderCause(
        "LOG910", "cannot tell from the dumps who is at fault", Row.NCCL,
        "Collect the dumps of all ranks (each is written on its own host), with TORCH_FR_BUFFER_SIZE=2000 "
        "and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 (fsdp-doctor run sets both)",
        "fsdp-doctor run -- torchrun ...",
    ),
}  # fmt: skip
"""Kind of a `FlightConclusion` (`fsdp_doctor.subjects.flight.KINDS`) -> its code and fix. Kinds that are
no fault are not in it.
"""
