"""Variables that belong to a debugging session and cost time or memory when they are left set.

Sources: CUDA programming guide (environment variables), CUDA-GDB manual (core dumps), torch 2.13 sources,
DCGM's list of variables that spoil its diagnostics, torchtitan docs/composability.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHECKED_ON = "2026-12-02"


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a variable does while it is set to something that counts as true, and how much that matters."""

    effect: str
    severe: bool = True
    """False: worth knowing only."""
    values: tuple[str, ...] = ()
    """Only these values (upper case) have the effect; empty: any that is not falsy."""


SLOWING: Mapping[str, Leftover] = {
    "CUDA_LAUNCH_BLOCKING": Leftover("every kernel launch waits for the kernel: nothing overlaps"),
    "TORCH_DISTRIBUTED_DEBUG": Leftover(
        "every collective is preceded by a check of shapes over gloo", values=("DETAIL",)
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Leftover(
        "every tensor is a cudaMalloc and a cudaFree, each of which waits for the device"
    ),
    "TORCH_NCCL_NAN_CHECK": Leftover("every input of a collective is scanned for NaN"),
    "TORCH_NCCL_DESYNC_DEBUG": Leftover("every collective records its state in the store, with timing"),
    "TORCH_CUDA_SANITIZER": Leftover("every operator's memory accesses are tracked"),
    "TORCH_SHOW_DISPATCH_TRACE": Leftover("every operator writes a line"),
    "NVIDIA_TF32_OVERRIDE": Leftover("TF32 is off in every library", values=("0",)),
    "CUDA_DISABLE_PERF_BOOST": Leftover("the GPU does not raise its clocks for compute"),
    "TORCH_NCCL_ENABLE_TIMING": Leftover("each collective records two events", severe=False),
    "TORCH_SHOW_CPP_STACKTRACES": Leftover("errors carry C++ stacks", severe=False),
    "TORCH_USE_CUDA_DSA": Leftover("device assertions are on in builds that have them", severe=False),
    "PYTORCH_JIT": Leftover("TorchScript is off", severe=False, values=("0",)),
}
"""Slow down every step."""

TOOLS: Mapping[str, str] = {
    "NSIGHT_CUDA_DEBUGGER": "a debugger attaches to every process",
    "CUDA_INJECTION32_PATH": "a profiler's library is loaded into every process",
    "CUDA_INJECTION64_PATH": "a profiler's library is loaded into every process",
    "NVTX_INJECTION64_PATH": "a profiler's library receives every NVTX range",
    "CUDA_AUTO_BOOST": "the clocks are governed by the environment",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "a failing kernel dumps the device's memory before it reports",
    "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "a failing kernel dumps core before it reports",
    "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION": "a failing kernel dumps the process before it reports",
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "a pipe per process waits for requests to dump core",
    "CUDA_COREDUMP_FILE": "core dumps of the device go to this file",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "a failing kernel waits for a debugger: the job hangs",
    "CUDA_PROFILE": "the legacy profiler records every launch",
    "COMPUTE_PROFILE": "the legacy profiler records every launch",
    "OPENCL_PROFILE": "the legacy profiler records every launch",
    "CUDBG_USE_LEGACY_DEBUGGER": "the legacy debugger attaches to every process",
    "CUDA_DEBUGGER_SOFTWARE_PREEMPTION": "kernels are preempted in software",
    "CUDA_MEMCHECK": "a memory checker is loaded",
    "NVPROF_TMPDIR": "a profiler's folder is set",
}
"""Of debuggers, profilers and core dumps (DCGM's software test fails a node for most of them)."""
HARMLESS_TOOLS = frozenset(("CUDA_COREDUMP_FILE", "NVPROF_TMPDIR", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"))
"""Do nothing until they are asked."""
STOPS_THE_JOB = frozenset(("CUDA_DEVICE_WAITS_ON_EXCEPTION", "NSIGHT_CUDA_DEBUGGER"))

ACCELERATE_FSDP = frozenset(
    (
        "FSDP_VERSION",
        "FSDP_SHARDING_STRATEGY",
        "FSDP_RESHARD_AFTER_FORWARD",
        "FSDP_OFFLOAD_PARAMS",
        "FSDP_MIN_NUM_PARAMS",
        "FSDP_AUTO_WRAP_POLICY",
        "FSDP_TRANSFORMER_CLS_TO_WRAP",
        "FSDP_BACKWARD_PREFETCH",
        "FSDP_STATE_DICT_TYPE",
        "FSDP_FORWARD_PREFETCH",
        "FSDP_USE_ORIG_PARAMS",
        "FSDP_CPU_RAM_EFFICIENT_LOADING",
        "FSDP_SYNC_MODULE_STATES",
        "FSDP_ACTIVATION_CHECKPOINTING",
    )
)
"""accelerate's FullyShardedDataParallelPlugin takes its defaults from these (utils/dataclasses.py)."""
