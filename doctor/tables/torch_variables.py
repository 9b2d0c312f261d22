"""torch's own environment variables for distributed training and for the allocator.

Sources: torch 2.13.0 headers (ProcessGroupNCCL.hpp, FlightRecorder.hpp, Utils.hpp, AllocatorConfig.h,
CUDAAllocatorConfig.h) and Python modules under torch/distributed; the strings of its libraries; release
notes and pull requests named beside an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHECKED_ON = "2026-12-02"
NEWEST = (2, 14)
"""Newer than this: an unknown name may be right."""


def _names(prefix: str, text: str) -> frozenset[str]:
    return frozenset(prefix + n for n in text.split())


TORCH_NCCL = _names(
    "TORCH_NCCL_",
    "ABORT_IN_DESTROY_PG ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BCAST_UNIQUEID BLOCKING_WAIT "
    "COORD_CHECK_MILSEC CUDA_EVENT_CACHE DEBUG_INFO_PIPE_FILE DEBUG_INFO_TEMP_FILE DESYNC_DEBUG "
    "DUMP_ON_TIMEOUT ENABLE_MONITORING ENABLE_TIMING EXTRA_DUMP_ON_EXEC HEARTBEAT_TIMEOUT_SEC "
    "HIGH_PRIORITY LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN NAN_CHECK NONBLOCKING_TIMEOUT PROPAGATE_ERROR "
    "RANKS_PER_ROOT RETHROW_CUDA_ERRORS SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TRACE_BUFFER_SIZE "
    "TRACE_CPP_STACK USE_COMM_NONBLOCKING USE_TENSOR_REGISTER_ALLOCATOR_HOOK WAIT_TIMEOUT_DUMP_MILSEC "
    "ZERO_CONTEXT",
)
TORCH_FR = _names("TORCH_FR_", "BUFFER_SIZE CPP_STACK DUMP_DYNAMIC_FILE_NAME DUMP_TEMP_FILE DUMP_ON_TIMEOUT")
TORCHELASTIC = _names(
    "TORCHELASTIC_",
    "ENABLE_FILE_TIMER ERROR_FILE ETCD_BINARY_PATH HEALTH_CHECK_PORT LOG_LINE_PREFIX_TEMPLATE MAX_RESTARTS "
    "RESTART_COUNT RUN_ID SIGNALS_TO_HANDLE TIMER_FILE UNINTERRUPTIBLE_STATE_TIMEOUT USE_AGENT_STORE",
)
GLOO = _names(
    "GLOO_",
    "DEVICE_TRANSPORT DISABLE_CONNECTION_RETRIES ENABLE_RANK_AS_SEQUENCE_NUMBER ENABLE_STORE_V2_API "
    "LOG_LEVEL SOCKET_IFNAME",
)
FAMILIES: Mapping[str, frozenset[str]] = {
    "TORCH_NCCL_": TORCH_NCCL,
    "TORCH_FR_": TORCH_FR,
    "TORCHELASTIC_": TORCHELASTIC,
    "GLOO_": GLOO,
}
"""Prefix -> every name of the family; another name with the prefix is misspelt or of another version."""

IMPORTANT = frozenset(
    [
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_SHOW_CPP_STACKTRACES",
        "TORCH_CPP_LOG_LEVEL",
        "TOKENIZERS_PARALLELISM",
        "ACCELERATE_USE_FSDP",
        "LD_LIBRARY_PATH",
        "FI_PROVIDER",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
    ]
)
"""Other names whose near misses are worth a word."""

RELATED = frozenset(
    [
        "MASTER_ADDRS",
        "NODE_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_DEVICES",
        "LOCAL_RANKS",
        "MASTER_HOST",
    ]
)
"""Near some important name and yet another variable."""

NEVER_READ: Mapping[str, str] = {
    "MASTER_ADDRESS": "MASTER_ADDR",
    "MASTERADDR": "MASTER_ADDR",
    "MASTERPORT": "MASTER_PORT",
    "WORLDSIZE": "WORLD_SIZE",
    "LOCALRANK": "LOCAL_RANK",
    "GLOO_IFNAME": "GLOO_SOCKET_IFNAME",
    "TORCH_NCCL_TIMEOUT": "pass timeout=timedelta(...) to init_process_group: no library reads this variable",
    "TORCH_DISTRIBUTED_TIMEOUT": "pass timeout=timedelta(...) to init_process_group: nothing reads this one",
}
"""Names that are often set and that nothing reads, with what was meant."""

RENAMED: Mapping[str, str] = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
}
"""Old name -> new name; torch still reads the old one and warns, and the old one loses to the new one."""
RENAMED_SINCE = (2, 2)

IGNORED_SINCE: Mapping[str, tuple[tuple[int, int], str]] = {
    "TORCH_NCCL_AVOID_RECORD_STREAMS": (
        (2, 8),
        "tensors are kept alive without record_stream whatever it says (pytorch#194701)",
    ),
}
"""Variable -> torch from which on it does nothing, and why."""

SWAPPED_ONLY_TORCH = frozenset(
    n.replace("TORCH_NCCL_", "NCCL_") for n in TORCH_NCCL if n.replace("TORCH_NCCL_", "NCCL_") not in RENAMED
)
"""With the prefix NCCL_ nobody reads these: they are torch's."""

BOOLEANS = _names(
    "TORCH_NCCL_",
    "BLOCKING_WAIT DUMP_ON_TIMEOUT DESYNC_DEBUG ENABLE_TIMING ENABLE_MONITORING NAN_CHECK CUDA_EVENT_CACHE "
    "HIGH_PRIORITY RETHROW_CUDA_ERRORS PROPAGATE_ERROR BCAST_UNIQUEID AVOID_RECORD_STREAMS "
    "LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN USE_TENSOR_REGISTER_ALLOCATOR_HOOK TRACE_CPP_STACK",
)
TRUE_WORDS = frozenset(("y", "yes", "1", "t", "true"))
FALSE_WORDS = frozenset(("n", "no", "0", "f", "false"))
"""getCvarBool of Utils.hpp; any other word raises when the process group is made."""
INTEGERS = _names(
    "TORCH_NCCL_",
    "ASYNC_ERROR_HANDLING HEARTBEAT_TIMEOUT_SEC TRACE_BUFFER_SIZE WAIT_TIMEOUT_DUMP_MILSEC "
    "COORD_CHECK_MILSEC RANKS_PER_ROOT",
) | {"TORCH_FR_BUFFER_SIZE"}

HEARTBEAT_SHORT = 60
"""Seconds. A first collective, a compile or a checkpoint on the watchdog's CUDA calls takes longer."""
HEARTBEAT_LONG = 7200
"""Seconds. A hang then holds the cluster for hours; the default is 480."""

FLIGHT_RECORDER_DEFAULT_ON = (2, 9)
"""Certain from here on: 2000 events are kept without a variable (2.13: FlightRecorder.hpp)."""
FLIGHT_RECORDER_EVENTS = 2000
FR_NAME_SINCE = (2, 10)
"""TORCH_FR_BUFFER_SIZE is read beside TORCH_NCCL_TRACE_BUFFER_SIZE."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of the allocator's configuration."""

    kind: str
    """bool, size (MiB), integer, fraction, backend or divisions."""
    minimum: int = 0


ALLOCATOR: Mapping[str, Option] = {
    "backend": Option("backend"),
    "max_split_size_mb": Option("size", 20),
    "large_segment_size_mb": Option("size", 20),
    "max_non_split_rounding_mb": Option("size", 20),
    "garbage_collection_threshold": Option("fraction"),
    "roundup_power2_divisions": Option("divisions"),
    "roundup_bypass_threshold_mb": Option("size"),
    "expandable_segments": Option("bool"),
    "release_lock_on_cudamalloc": Option("bool"),
    "release_lock_on_hipmalloc": Option("bool"),
    "pinned_use_cuda_host_register": Option("bool"),
    "pinned_use_hip_host_register": Option("bool"),
    "pinned_num_register_threads": Option("integer", 1),
    "pinned_use_background_threads": Option("bool"),
    "pinned_reserve_segment_size_mb": Option("size"),
    "pinned_max_round_threshold_mb": Option("size"),
    "pinned_max_cached_size_mb": Option("size"),
    "pinned_free_catch_all": Option("bool"),
    "graph_capture_record_stream_reuse": Option("bool"),
    "per_process_memory_fraction": Option("fraction"),
    "throw_on_cudamalloc_oom": Option("bool"),
}
"""Keys of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF; torch raises at the first CUDA call for others."""
ALLOCATOR_BACKENDS = ("native", "cudaMallocAsync", "hipMallocAsync")
ALLOC_CONF_SINCE = (2, 9)
"""PYTORCH_ALLOC_CONF is read; PYTORCH_CUDA_ALLOC_CONF still wins where both are set."""
ALLOC_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
