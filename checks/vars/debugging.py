"""Leftovers of debugging and profiling sessions, and CUDA's hardware queues."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, says, unset
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.tables import debug_variables as table

QUEUES_MAX = 32
QUEUES_DEFAULT = 8


@check("VAR014", Row.SLOW, needs=(Environment,), uses=(Launch,), tags=("vars", "cuda", "torch"))
def debugging_is_on(facts: Facts, options: Options) -> Iterator[Finding]:
    """A debugging variable slows every step

    What: CUDA_LAUNCH_BLOCKING=1, TORCH_DISTRIBUTED_DEBUG=DETAIL, PYTORCH_NO_CUDA_MEMORY_CACHING,
        TORCH_NCCL_NAN_CHECK or a similar variable is set.
    Why: FSDP lives from overlapping the next all-gather with compute: launches that block, a check before
        each collective or an uncached allocator end that, and a step takes several times as long.
    Fix: unset it once the fault that it was for is found.
    Sources: CUDA programming guide (environment variables), PyTorch documentation (TORCH_DISTRIBUTED_DEBUG,
        CUDA memory management), ProcessGroupNCCL sources.
    """
    variables = settings(facts)
    bad = False
    for name, leftover in table.SLOWING.items():
        setting = variables.get(name)
        if setting is None or not setting.value.strip():
            continue
        if leftover.values:
            if setting.value.strip().upper() not in leftover.values:
                continue
        elif not setting.on:
            continue
        bad = True
        text = f"{says(setting)}: {leftover.effect}"
        if leftover.severe:
            yield warn(text, "unset", subject=about(setting), fix=unset(setting))
        else:
            yield info(text, subject=about(setting), fix=unset(setting))
    if not bad:
        yield ok("no debugging variable is set")


@check("VAR015", Row.SLOW, needs=(Environment,), uses=(Launch,), tags=("vars", "cuda"))
def one_hardware_queue(facts: Facts, options: Options) -> Iterator[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one hardware queue

    What: CUDA_DEVICE_MAX_CONNECTIONS is 1, or is no number from 1 to 32.
    Why: with one queue kernels run in the order of their launch, whatever their stream: the
        reduce-scatters of FSDP wait for compute and compute for them. Megatron-LM's tensor and sequence
        parallelism asks for 1 on purpose; FSDP, also with PyTorch's own tensor parallelism, wants the
        default of 8 or more.
    Fix: unset it, or set it to 16 or 32; keep 1 only for Megatron's tensor parallelism.
    Sources: CUDA programming guide; torchtitan#1147 and its docs/composability.md; Megatron-LM#533.
    """
    setting = settings(facts).get("CUDA_DEVICE_MAX_CONNECTIONS")
    if setting is None or not setting.value.strip():
        yield ok(f"CUDA_DEVICE_MAX_CONNECTIONS is not set: {QUEUES_DEFAULT} queues")
    elif setting.number is None or not 1 <= setting.number <= QUEUES_MAX:
        yield warn(
            f"{says(setting)}: out of range",
            f"1 to {QUEUES_MAX}",
            subject=about(setting),
            fix=unset(setting),
        )
    elif setting.number == 1:
        yield warn(
            f"{says(setting)}: communication and compute of FSDP do not overlap",
            f"unset ({QUEUES_DEFAULT}) or 16 to {QUEUES_MAX}, unless Megatron's sequence parallelism needs 1",
            subject=about(setting),
            fix=Fix(
                "Unset it, unless Megatron's tensor or sequence parallelism is used",
                "unset CUDA_DEVICE_MAX_CONNECTIONS",
            ),
        )
    else:
        yield ok(says(setting))


@check("VAR016", Row.SLOW, needs=(Environment,), uses=(Launch,), tags=("vars", "cuda"))
def tool_is_attached(facts: Facts, options: Options) -> Iterator[Finding]:
    """A debugger, profiler or core-dump variable is left in the environment

    What: a variable such as CUDA_INJECTION64_PATH, CUDA_ENABLE_COREDUMP_ON_EXCEPTION,
        CUDA_DEVICE_WAITS_ON_EXCEPTION, NSIGHT_CUDA_DEBUGGER or COMPUTE_PROFILE is set.
    Why: an injected library or the profiler costs time in every launch; a core dump of 80 GB per GPU fills
        the disk while all other ranks run into their timeout; a device that waits for a debugger turns an
        error into a hang.
    Fix: unset it, unless you are using the tool now.
    Sources: CUDA-GDB manual (GPU core dumps), CUPTI documentation, DCGM software test (bad environment).
    """
    variables = settings(facts)
    bad = False
    for name, effect in table.TOOLS.items():
        setting = variables.get(name)
        if setting is None or not setting.on:
            continue
        bad = True
        text = f"{says(setting)}: {effect}"
        if name in table.HARMLESS_TOOLS:
            yield info(text, subject=about(setting))
        elif name in table.STOPS_THE_JOB:
            yield fail(text, "unset", subject=about(setting), fix=unset(setting), row=Row.NCCL)
        else:
            yield warn(text, "unset", subject=about(setting), fix=unset(setting))
    if not bad:
        yield ok("no tool is attached by a variable")
