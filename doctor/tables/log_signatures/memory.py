"""Out of memory, on the GPU and on the host."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.OOM)
V, C, R, L, K = Kind.VICTIM, Kind.CONTEXT, Kind.ROOT, Kind.LIKELY, Kind.CONFIRMS
_OOM_WHY = "The rank that runs out of memory ends or skips its next collective; all others wait for it until the timeout."
_HOST_WHY = "Host memory ran out: a full state dict on every rank, every rank loading the whole model, DataLoader workers, or pinned buffers of CPU offload."
_HOST_FIX = "Use rank0_only with offload to CPU or sharded checkpoints, load with mmap or on the meta device, start fewer DataLoader workers, or give the job more host RAM (--mem, the container's memory limit)"

MEMORY: tuple[Signature, ...] = (
    _s(
        "LOG301", R, 93, "CUDA out of memory",
        ("CUDA out of memory", "OutOfMemoryError"),
        r"CUDA out of memory\.(?! Tried to allocate more than 1EB)(?! Allocation was preemptively)(?: Tried to allocate (?P<req>[\d.]+ (?:[KMGT]i)?[Bb](?:ytes)?))?|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b(?!.*(?:1EB|preemptively|CUDA out of memory))",
        says="CUDA out of memory: tried to allocate {req}", why=_OOM_WHY,
        fix="Shard all parameters (FULL_SHARD with an auto-wrap policy), use a smaller batch with gradient accumulation, checkpoint activations; `fsdp-doctor dryrun` says what each saves",
        command="fsdp-doctor dryrun --model … --batch … --world-size N", sources="CUDACachingAllocator.cpp; wordings of torch 1.x, 2.0, 2.1, 2.3 and 2.4 on",
        sample="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU 1 has a total capacity of 79.15 GiB of which 141.25 MiB is free. Process 2109115 has 78.99 GiB memory in use. Of the allocated memory 77.21 GiB is allocated by PyTorch, and 283.51 MiB is reserved by PyTorch but unallocated.",
    ),
    _s(
        "LOG302", V, 20, "An allocation of more than one exabyte",
        "more than 1EB memory", r"Tried to allocate more than 1EB memory",
        row="nccl", why="The size is garbage: a length that a failed broadcast did not fill. An earlier timeout or mismatch is the cause, not memory.",
        fix="Look for the failed or mismatched collective before it", sources="CUDACachingAllocator.cpp; nccl#1284",
        sample="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
    ),
    _s(
        "LOG303", R, 90, "The memory fraction of the process is used up",
        "per_process_memory_fraction", r"would exceed per_process_memory_fraction limit(?:.*Requested size: (?P<req>[\d.]+ \w+))?",
        says="set_per_process_memory_fraction leaves no room for {req}", why=_OOM_WHY,
        fix="Raise or remove torch.cuda.set_per_process_memory_fraction", sources="CUDACachingAllocator.cpp, torch 2.13",
        sample="CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 2.00 GiB",
    ),
    _s(
        "LOG304", R, 88, "The CUDA driver is out of memory",
        ("CUDA error: out of memory", "cudaErrorMemoryAllocation"), r"CUDA error: out of memory|cudaErrorMemoryAllocation",
        why="Something besides PyTorch's allocator found no memory: a context, a library's workspace, NCCL's buffers; often another process holds the GPU.",
        fix="Look for other processes on the GPU, and leave one or two GiB of headroom", command="nvidia-smi", sources="CUDA error 2",
        sample="RuntimeError: CUDA error: out of memory",
    ),
    _s(
        "LOG305", R, 88, "NCCL could not allocate its buffers",
        ("'out of memory'", "Failed to CUDA "), r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc|host alloc)(?: async)? (?P<b>\d+) bytes",
        says="NCCL could not allocate its buffers on the GPU (out of memory)", why="PyTorch's cache holds all memory, so NCCL finds none for its channels.",
        fix="Leave headroom (a memory fraction of 0.95 or less), use fewer process groups, or run a first collective before the model fills the GPU", sources="nccl alloc.h",
        sample="NCCL WARN Failed to CUDA calloc async 6291456 bytes",
    ),
    _s(
        "LOG306", L, 55, "A CUDA library could not be initialised",
        ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR"),
        r"(?P<what>CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR))",
        says="a CUDA library could not be set up: {what}", why="Mostly the GPU's memory is full when the handle is made; sometimes an earlier kernel failed.",
        fix="Reduce memory first; if it stays, run with CUDA_LAUNCH_BLOCKING=1", sources="cuBLAS, cuDNN",
        sample="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
    ),
    _s(
        "LOG307", R, 92, "Host memory could not be allocated",
        ("DefaultCPUAllocator", "Cannot allocate memory", "std::bad_alloc", "MemoryError"),
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (?P<b>\d+) bytes|\[Errno 12\] Cannot allocate memory|std::bad_alloc|^MemoryError\b(?:: (?P<what>.*))?",
        says="host memory could not be allocated ({b} bytes)", why=_HOST_WHY, fix=_HOST_FIX, command="free -g; cat /sys/fs/cgroup/memory.max; ulimit -v", sources="c10/core/CPUAllocator.cpp",
        sample="RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.",
    ),
    _s(
        "LOG308", L, 40, "The allocator's cache is flushed again and again",
        "pytorch allocator cache flushes", r"(?P<n>\d+) pytorch allocator cache flushes since last step",
        row="slow", says="the allocator's cache was flushed {n} times in one step", why="Memory is nearly full, so each flush stalls this rank and with it all others.",
        fix="Shrink the batch, or call empty_cache on all ranks at the same step", sources="DeepSpeed stage3.py",
        sample="[WARNING] [stage3.py] 3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
    ),
    _s(
        "LOG311", R, 95, "The kernel's OOM killer ended a process",
        "illed process ", r"(?:Memory cgroup out of memory|[Oo]ut of memory)?:? ?[Kk]illed process (?P<pid>\d+),? \((?P<name>[^)]+)\)(?:.*?anon-rss:(?P<rss>\d+)kB)?",
        scope=Scope.HOST, says="host out of memory: the kernel's OOM killer ended process {pid} ({name})", why=_HOST_WHY, fix=_HOST_FIX, command="free -g; cat /sys/fs/cgroup/memory.max",
        sources="Linux mm/oom_kill.c",
        sample="[856341.77] Out of memory: Killed process 410126 (python) total-vm:79905000kB, anon-rss:22957108kB, file-rss:72036kB",
    ),
    _s(
        "LOG312", R, 95, "The scheduler saw an OOM kill",
        ("oom-kill event", "oom_kill event", "OOMKilled", "oom_kill ", "OUT_OF_MEMORY", "Out Of Memory"),
        r"oom[-_]kill event\(?s?\)? in (?:step|StepId)|Detected \d+ oom.?kill event|OOMKilled|oom_kill (?P<n>[1-9]\d*)\b|\bOUT_OF_ME(?:MORY)?\b|task \d+: Out Of Memory",
        scope=Scope.HOST, says="host out of memory: an oom-kill by the cgroup's memory limit", why=_HOST_WHY, fix=_HOST_FIX, command="sacct -j JOB -o JobID,MaxRSS,ReqMem,State", sources="Slurm, Kubernetes, cgroup memory.events",
        sample="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4421.0. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    ),
)
