"""NCCL releases with a defect that FSDP can meet: versions, what brings it out, the way round."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fsdp_doctor.findings import Confidence, Row, Status
from fsdp_doctor.tables.versions import Version, at_least

CHECKED_ON = "2026-12-02"
NEWEST: Version = (2, 32, 3)
"""The newest release that existed when the list was checked."""


class Condition(str, Enum):
    """What a machine must have for a defect to show."""

    ALWAYS = "any machine"
    LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
    NVLS = "NVLink SHARP in use"
    ROCE = "RoCE ports without NCCL_IB_GID_INDEX"
    PERMUTED_NVLS = "CUDA_VISIBLE_DEVICES out of order, with NVLink SHARP"
    PERMUTED_NVLS_FORCED = "CUDA_VISIBLE_DEVICES out of order, with NCCL_ALGO=NVLS"
    RTX_PRO_6000 = "two or more RTX PRO 6000 Blackwell"
    ARM = "an aarch64 processor"


@dataclass(frozen=True, slots=True)
class Defect:
    """One entry: versions from `first` up to, without, `fixed`."""

    first: Version
    fixed: Version
    condition: Condition
    status: Status
    row: Row
    symptom: str
    workaround: str
    source: str
    command: str | None = None
    confidence: Confidence = Confidence.HIGH

    def covers(self, version: Version) -> bool:
        """Whether a version lies in the range."""
        return at_least(version, self.first) and not at_least(version, self.fixed)


DEFECTS: tuple[Defect, ...] = (
    Defect(
        (2, 0),
        (2, 17),
        Condition.LAUNCH_BLOCKING,
        Status.FAIL,
        Row.NCCL,
        "collectives hang while CUDA_LAUNCH_BLOCKING=1 is set",
        "Unset CUDA_LAUNCH_BLOCKING, or use NCCL 2.17 or newer (torch 2.1 or newer)",
        "pytorch#97843, nccl#750",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    Defect(
        (2, 18),
        (2, 19),
        Condition.NVLS,
        Status.INFO,
        Row.NCCL,
        "init can end in nvls.cc \"Cuda failure 'invalid argument'\" after the fabric manager was restarted",
        "Reset the GPUs or reboot after a restart of nvidia-fabricmanager; NCCL_NVLS_ENABLE=0 gets by",
        "nccl#976, nccl#1488",
    ),
    Defect(
        (2, 19),
        (2, 20),
        Condition.ALWAYS,
        Status.INFO,
        Row.OOM,
        "communicators take noticeably more GPU memory than with 2.18",
        "Leave room for it when a run is sized, or use torch 2.3 or newer",
        "nccl#1234, vllm#2804",
        confidence=Confidence.MEDIUM,
    ),
    Defect(
        (2, 20, 3),
        (2, 20, 5),
        Condition.ALWAYS,
        Status.WARN,
        Row.NCCL,
        "splitting a communicator, as hybrid sharding does, can fail at init",
        "Use NCCL 2.20.5 or newer",
        "nccl#1185",
        confidence=Confidence.MEDIUM,
    ),
    Defect(
        (2, 20, 5),
        (2, 21),
        Condition.ALWAYS,
        Status.INFO,
        Row.NCCL,
        "collectives captured in CUDA graphs can hang in ncclLaunchKernelBefore_NoUncapturedCuda",
        "Use NCCL 2.21 or newer (torch 2.5 or newer) where CUDA graphs are used",
        "nccl#1251",
    ),
    Defect(
        (2, 0),
        (2, 21),
        Condition.ROCE,
        Status.WARN,
        Row.NCCL,
        "NCCL does not find the RoCE v2 GID by itself and may pick one that is not routed",
        "Set NCCL_IB_GID_INDEX to the RoCE v2 index (show_gids), or use NCCL 2.21 and leave it unset",
        "NCCL user guide, env.rst, NCCL_IB_GID_INDEX",
    ),
    Defect(
        (2, 21),
        (2, 26),
        Condition.ALWAYS,
        Status.INFO,
        Row.NCCL,
        "ncclCommAbort can hang, so that torch's watchdog cannot end a job that timed out",
        "Use NCCL 2.26.2 or newer (torch 2.7 or newer), or let the launcher kill the ranks",
        "pytorch#149351",
    ),
    Defect(
        (2, 26, 2),
        (2, 27),
        Condition.PERMUTED_NVLS,
        Status.FAIL,
        Row.WRONG,
        "all-gather over NVLink SHARP returns the shards in the wrong rank order, without any error",
        "List CUDA_VISIBLE_DEVICES in ascending order, or set NCCL_NVLS_ENABLE=0",
        "nccl#1906",
        "export NCCL_NVLS_ENABLE=0",
        Confidence.MEDIUM,
    ),
    Defect(
        (2, 27),
        (2, 33),
        Condition.PERMUTED_NVLS_FORCED,
        Status.WARN,
        Row.WRONG,
        "all-gather with NCCL_ALGO=NVLS on one node may return the shards in the wrong rank order",
        "List CUDA_VISIBLE_DEVICES in ascending order and unset NCCL_ALGO",
        "nccl#1906, nccl#2377",
        "unset NCCL_ALGO",
        Confidence.LOW,
    ),
    Defect(
        (2, 26, 2),
        (2, 27),
        Condition.RTX_PRO_6000,
        Status.WARN,
        Row.NCCL,
        "messages of 512 KiB and more can end in an illegal memory access",
        "Use a newer NCCL (2.31.2 was clean), and its torch release",
        "nccl#2418",
        confidence=Confidence.MEDIUM,
    ),
    Defect(
        (2, 28, 9),
        (2, 29, 3),
        Condition.ARM,
        Status.FAIL,
        Row.NCCL,
        "proxy slots leak on ARM hosts until every rank waits for ever at 100 % utilisation",
        "Use NCCL 2.29.3 or newer (torch 2.12 or newer)",
        "NCCL 2.29.3 release notes, marin#8038",
        confidence=Confidence.MEDIUM,
    ),
    Defect(
        (2, 29, 2),
        (2, 29, 3),
        Condition.ALWAYS,
        Status.WARN,
        Row.NCCL,
        "a regression of this release hangs collectives; torch skipped it for that reason",
        "Use NCCL 2.29.3 or newer",
        "pytorch#174338",
    ),
    Defect(
        (2, 29, 3),
        (2, 29, 7),
        Condition.ALWAYS,
        Status.INFO,
        Row.SLOW,
        "an all-gather through the copy engine (registered user buffers) does not overlap the forward pass",
        "Use NCCL 2.30, or leave user-buffer registration off",
        "Megatron-Bridge#3391",
        confidence=Confidence.MEDIUM,
    ),
)

# NCCL user guide, troubleshooting, "runtime issues": host memory by cuMem is the default from the first,
# and is tried out before it is used from the second.
CUMEM_HOST_DEFAULT: Version = (2, 24)
CUMEM_HOST_SELF_CHECK: Version = (2, 26, 5)
