"""Lines that the search for a culprit asks for by name: codes of `fsdp_doctor.tables.log_signatures`."""

from __future__ import annotations

# what NCCL, gloo and the store print of a rank that waits
TIMEOUT = "LOG101"
PROGRESS = "LOG102"
WATCHDOG_FAILED = "LOG103"
WORK_TIMEOUT = "LOG104"
BLOCKING_WAIT_TIMEOUT = "LOG105"
TAKEN_DOWN = "LOG106"
NOT_FINISHED = "LOG112"
OTHER_COLLECTIVE = "LOG115"
BARRIER_TIMEOUT = "LOG117"
GLOO_TIMEOUT = "LOG120"
GLOO_PAIR_CLOSED = "LOG121"
KEY_MISSING = "LOG143"
ID_MISSING = "LOG149"

# what they print of a peer that is gone
GLOO_PEER_CLOSED = "LOG118"
GLOO_PEER_BROKE = "LOG119"
REMOTE_ENDED = "LOG123"
SOCKET_CLOSED = "LOG124"
LOCAL_PEER_CLOSED = "LOG125"
IB_FAILED = "LOG134"
STORE_LOST = "LOG144"

WAITED = frozenset(
    (
        TIMEOUT,
        WATCHDOG_FAILED,
        WORK_TIMEOUT,
        BLOCKING_WAIT_TIMEOUT,
        NOT_FINISHED,
        BARRIER_TIMEOUT,
        GLOO_TIMEOUT,
        GLOO_PAIR_CLOSED,
        KEY_MISSING,
        ID_MISSING,
    )
)
"""Of a rank that waited until a timeout."""
PEER_LOST = frozenset((GLOO_PEER_CLOSED, GLOO_PEER_BROKE, REMOTE_ENDED, SOCKET_CLOSED, STORE_LOST))
"""Of a rank whose peer went away."""

# what launchers and schedulers print of a process
TOLD_TO_STOP = "LOG202"
BY_SIGNAL = "LOG205"
ABORTED = "LOG206"
SCHEDULER = "LOG214"
INTERRUPTED = "LOG219"
OF_THE_LAUNCHER = frozenset((TOLD_TO_STOP, BY_SIGNAL))
"""Of how a process ended, by who started it: the process itself said nothing."""

# what shells and launchers print of a command, a program or a container that they could not start
NOT_STARTED = frozenset(("LOG225", "LOG226", "LOG227", "LOG228"))

# causes that rules treat apart
GLOO_OTHER_SIZE = "LOG160"
WORKER_DIED = "LOG207"
XID = "LOG231"
ECC = "LOG232"
KERNEL_FAILED = "LOG233"
GPU_UNUSABLE = "LOG234"
DEVICE_ASSERT = "LOG237"
BLOCKED = "LOG239"
MEMORY_DEFECTIVE = "LOG242"
UNKNOWN_EXCEPTION = "LOG298"
CUDA_OOM = frozenset(("LOG301", "LOG303", "LOG304", "LOG305"))
CACHE_FLUSHED = "LOG308"
KERNEL_OOM = "LOG311"
SCHEDULER_OOM = "LOG312"
HOST_OOM = frozenset((KERNEL_OOM, SCHEDULER_OOM))
SOCKETS = "LOG401"
NO_INFINIBAND = "LOG402"
THROTTLED = "LOG405"
RECOMPILES = "LOG407"
STRAGGLER_NAMED = "LOG408"
FULL_STATE_OOM = "LOG501"
DCP_FAILED = "LOG506"
MODULE_MISSING = "LOG716"
NOT_A_NUMBER = "LOG731"
