"""Conclusions that no single line gives: they follow from what several ranks say, or do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fsdp_doctor.findings import Row

CHECKED_ON = "2026-12-02"


@dataclass(frozen=True, slots=True)
class ConclusionKind:
    """What a derived conclusion means and what to do about it."""

    code: str
    title: str
    row: Row | None
    what: str
    why: str
    fix: str
    sources: str
    command: str | None = None


NEVER_ENTERED = "LOG001"
OTHER_OPERATION = "LOG002"
OTHER_SIZE = "LOG003"
UNEVEN = "LOG004"
SAVE_ON_SOME = "LOG005"
STALLED = "LOG006"
STRAGGLER = "LOG007"
KILLED = "LOG008"
EXITED = "LOG009"
CRASHED = "LOG010"
LEFT_EARLY = "LOG011"
OOM_AT_SAVE = "LOG012"
DIVERGED = "LOG013"
RECORDER = "LOG014"
ODD_STACK = "LOG015"
NODE_LOST = "LOG016"
SLOWED_DOWN = "LOG017"
BEHIND = "LOG018"
ERROR_HIDDEN = "LOG019"
NOT_PUBLISHED = "LOG020"
PEER_NAMED = "LOG021"
MEMORY_SNAPSHOT = "LOG022"
DATA_LOADING = "LOG023"
RAS = "LOG024"
CANNOT_TELL = "LOG099"

_TORCH = "torch ProcessGroupNCCL and gloo; published post-mortems"
_SAME_ORDER = "Make every rank issue the same collectives in the same order: no early return, no branch on the rank or on data around anything that FSDP gathers"

CONCLUSIONS: Mapping[str, ConclusionKind] = {
    c.code: c
    for c in (
        ConclusionKind(
            NEVER_ENTERED,
            "A rank never entered the collective in which the others waited",
            Row.NCCL,
            "Compares the ranks that timed out with those that should be there: the one that printed no timeout kept the others waiting.",
            "All ranks have to enter a collective; one that is busy elsewhere (a slow or stuck batch, a save, a compile, a stopped process) makes the others time out, and torchrun then names the first of those.",
            "Look at what that rank did last, and take its stack while it hangs",
            _TORCH,
            "py-spy dump --pid PID",
        ),
        ConclusionKind(
            OTHER_OPERATION,
            "A rank ran another collective than the others",
            Row.NCCL,
            "Compares operation and sequence number of the collective in which each rank was stuck; the majority is right.",
            "A branch on the rank or on data (a batch without images, an unused expert, an early return) made it leave the common order.",
            _SAME_ORDER,
            _TORCH,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …",
        ),
        ConclusionKind(
            OTHER_SIZE,
            "A rank ran the collective with another size",
            Row.NCCL,
            "Compares the sizes with which the ranks entered the same collective; the majority is right.",
            "A branch on data or a conditional module (a batch without images, an unused expert, a sequence of another length) made it gather another unit or reduce another tensor.",
            "Run the same modules on all ranks in each step (a dummy image or token where there is none), and pad to one length",
            _TORCH,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …",
        ),
        ConclusionKind(
            UNEVEN,
            "A rank left a loop before the others: uneven batches",
            Row.NCCL,
            "Finds a rank in a small all_reduce (or finished) where the others still gather parameters.",
            "The ranks have unequal numbers of batches: the first that runs out goes on to the next collective (a metric, a barrier) while the others still run the model.",
            "Give all ranks the same number of batches (drop_last=True, DistributedSampler padding), or agree on the end with an all_reduce in each iteration; use Join for DDP",
            "pytorch#77562; DistributedSampler",
        ),
        ConclusionKind(
            SAVE_ON_SOME,
            "A checkpoint is saved on some ranks only",
            Row.SAVE,
            "Finds a rank inside a save call whose collective differs from the others'.",
            "Saving an FSDP model gathers parameters from all ranks; inside `if rank == 0` the gather never completes.",
            "Call save_state, state_dict or dcp.save on all ranks, and let only the writing of the file be conditional",
            "accelerate#2000",
        ),
        ConclusionKind(
            STALLED,
            "All ranks entered the same collective and none finished it",
            Row.NCCL,
            "All ranks timed out in the same operation with the same size and sequence number.",
            "The program is in step, so the network or a device stalled: a link, an adapter, a switch, a hung GPU.",
            "Look at the network (ibstat, port counters), at dmesg for Xid, and run `fsdp-doctor probe` on these nodes; if it is the first collective, check NCCL_SOCKET_IFNAME, P2P and ACS",
            _TORCH,
            "fsdp-doctor probe --pairs",
        ),
        ConclusionKind(
            STRAGGLER,
            "A rank is slower than the others",
            Row.SLOW,
            "Compares the step times that the ranks print.",
            "All ranks wait for the slowest in each step. A rank whose own steps stay short while the others' grow is the one that comes late: it never waits.",
            "Look at that rank's GPU (clocks, temperature), host and data; `fsdp-doctor probe` names a slow GPU or link",
            "torchtitan#1092",
            "fsdp-doctor probe; nvidia-smi -q -d PERFORMANCE",
        ),
        ConclusionKind(
            KILLED,
            "A process was killed from outside",
            Row.OOM,
            "Finds an exit by SIGKILL that no Python error explains.",
            "Almost always the kernel's OOM killer or a container's memory limit; sometimes the scheduler or a person. The others only see a closed connection.",
            "Look at the kernel log and the cgroup's memory.events; give the job more host RAM (--mem), start fewer DataLoader workers, do not gather full state dicts on every rank",
            "torch elastic; Linux OOM killer",
            "dmesg -T | grep -i -E 'oom|killed process'; cat /sys/fs/cgroup/memory.events",
        ),
        ConclusionKind(
            EXITED,
            "A rank ended with an exit code and no traceback",
            None,
            "Finds an exit code other than that of an exception, and no error text of that rank.",
            "sys.exit, os._exit or a library ended the process; the other ranks see a closed connection or wait.",
            "Look for sys.exit and os._exit in the program and at that rank's last lines; decorate main with torch.distributed.elastic.multiprocessing.errors.record",
            "torch elastic",
        ),
        ConclusionKind(
            CRASHED,
            "A rank crashed natively",
            Row.NCCL,
            "Finds an exit by SIGSEGV, SIGBUS, SIGILL or SIGFPE.",
            "A library (an extension, a data reader, the driver) crashed; SIGBUS means a full /dev/shm or a truncated mapped file.",
            "Run with PYTHONFAULTHANDLER=1 and read the stack; enlarge /dev/shm for SIGBUS",
            "signal(7)",
            "PYTHONFAULTHANDLER=1 torchrun …",
        ),
        ConclusionKind(
            LEFT_EARLY,
            "A rank ended without an error while the others still worked",
            Row.NCCL,
            "Finds a rank without any error whose peers report that it closed its connection.",
            "It ran out of batches or returned early; its peers wait in a collective that it will not enter.",
            "Give all ranks the same number of batches (drop_last=True), and end all ranks together: a barrier before destroy_process_group",
            "gloo; pytorch#77562",
        ),
        ConclusionKind(
            OOM_AT_SAVE,
            "Out of memory while a full state dict was gathered for saving",
            Row.SAVE,
            "Finds an out-of-memory error inside a save call.",
            "A plain full state_dict under FSDP gathers the whole model on every GPU.",
            "Save a sharded checkpoint (DCP, SHARDED_STATE_DICT), or a full one with offload_to_cpu and rank0_only",
            "lightning#20312; FSDP documentation",
        ),
        ConclusionKind(
            DIVERGED,
            "The ranks ran different collectives, and no majority tells who is wrong",
            Row.NCCL,
            "Compares operation, size and sequence number of all ranks.",
            "The ranks took different branches and differ in what they do next.",
            _SAME_ORDER + "; let all ranks take the same decision (broadcast it, or all_reduce the flag)",
            _TORCH,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …",
        ),
        ConclusionKind(
            RECORDER,
            "The Flight Recorder names a rank",
            Row.NCCL,
            "Compares what the ranks' dumps say of each process group.",
            "The recorder holds what each rank enqueued, started and finished.",
            _SAME_ORDER,
            "torch Flight Recorder",
        ),
        ConclusionKind(
            ODD_STACK,
            "A rank stands elsewhere than the others",
            Row.NCCL,
            "Groups the ranks' stacks; the ranks that wait in a collective wait for those that do not.",
            "The odd rank keeps the others waiting.",
            "Look at where that rank stands",
            "ByteRobust, STAT: aggregation of stacks",
        ),
        ConclusionKind(
            NODE_LOST,
            "All ranks of a node went silent",
            Row.NCCL,
            "All ranks of one host, and no others, said nothing while the rest timed out.",
            "The node, its agent or its network is gone.",
            "Look at that node: power, kernel log, network",
            _TORCH,
        ),
        ConclusionKind(
            SLOWED_DOWN,
            "Steps became slower on all ranks",
            Row.SLOW,
            "Compares step times early and late in the log.",
            "Storage, a throttled GPU or a degraded link slows all ranks alike, because they wait for each other.",
            "Run `fsdp-doctor probe`, look at GPU clocks and at the storage",
            "published studies of stragglers",
            "fsdp-doctor probe",
        ),
        ConclusionKind(
            BEHIND,
            "A rank is behind the others in a process group",
            Row.NCCL,
            "Compares the last enqueued collective of each rank.",
            "The rank with the lowest number never issued the collective in which the others wait.",
            "Look at what that rank did instead: data loading, a save, a compile, a branch",
            _TORCH,
            "py-spy dump --pid PID",
        ),
        ConclusionKind(
            ERROR_HIDDEN,
            "A rank failed, and its error is not in these logs",
            None,
            "torchrun or the scheduler saw a rank end with an error that no line explains.",
            "The rank's standard error was not kept.",
            "Give its stderr.log (torchrun --log-dir … --redirects 3 --tee 3), and decorate main with torch.distributed.elastic.multiprocessing.errors.record",
            "torch elastic",
            "fsdp-doctor run -- torchrun …",
        ),
        ConclusionKind(
            NOT_PUBLISHED,
            "A rank did not come to the start of a process group",
            Row.NCCL,
            "Finds ranks that wait in the store for what another rank has to publish.",
            "That rank is still preprocessing, downloading or loading, or it crashed.",
            "Read that rank's output; let long work on one rank happen before init_process_group or behind a longer timeout",
            "nccl#708",
        ),
        ConclusionKind(
            PEER_NAMED,
            "Most ranks name the same peer as lost",
            Row.NCCL,
            "Counts the peers that the ranks' broken connections lead to.",
            "The peer's process or its network is gone.",
            "Look at the node that the address belongs to",
            "NCCL, gloo",
        ),
        ConclusionKind(
            MEMORY_SNAPSHOT,
            "A snapshot of CUDA memory shows who holds it, and an out-of-memory event if there was one",
            Row.OOM,
            "Sums a snapshot's segments and blocks per device and per line of the program, and looks for out-of-memory events in its trace. Without such an event it is information and no failure.",
            "The lines that hold most of the memory are those to change; memory that is reserved and unused in many small pieces is fragmentation.",
            "Shrink or shard what the largest lines hold: activation checkpointing, a smaller micro-batch, a loss in chunks",
            "torch.cuda.memory._dump_snapshot; PyTorch, Understanding CUDA Memory Usage",
        ),
        ConclusionKind(
            DATA_LOADING,
            "Steps wait for data",
            Row.SLOW,
            "Compares the time for data with the whole step's where a log prints both, over many steps and without the first.",
            "The GPU idles while a step waits for its batch: the input pipeline does not keep up.",
            "Raise num_workers, set pin_memory=True, persistent_workers=True and a larger prefetch_factor in the DataLoader; preprocess ahead of time, and look at the storage that the data comes from",
            "torch.utils.data.DataLoader; PyTorch performance tuning guide",
        ),
        ConclusionKind(
            RAS,
            "NCCL's RAS names a process or a rank",
            Row.NCCL,
            "Reads what `ncclras` answers of a running job: processes that are dead or do not answer, and ranks that have launched fewer collectives than the others, compared over several answers where there are some.",
            "RAS runs in a thread of each process: one that does not answer is stopped, gone or unreachable, and a rank whose counts stand still while it answers is busy elsewhere.",
            "Take the stack of the named process, and read its log and the kernel's of its node",
            "NCCL documentation, RAS (NCCL 2.24 on)",
            "py-spy dump --pid PID",
        ),
        ConclusionKind(
            CANNOT_TELL,
            "Cannot tell the cause from these logs",
            Row.NCCL,
            "Finds only lines that every waiting rank prints.",
            "What is here are consequences; the rank or the event that caused them left no trace in these logs.",
            "Collect the logs of all ranks, the kernel log and the Flight Recorder's dumps, or run it again under `fsdp-doctor run`",
            _TORCH,
            "fsdp-doctor run -- torchrun …",
        ),
    )
}
"""Code -> what it means."""
