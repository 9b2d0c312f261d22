"""Which NVML functions are asked, with which arguments: no more than the checks judge."""

from __future__ import annotations

SYSTEM = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverBranch",
    "nvmlSystemGetConfComputeState",
)
"""Without a GPU."""
COUNT = "nvmlDeviceGetCount"
HANDLE = "nvmlDeviceGetHandleByIndex"

PLAIN = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetGspFirmwareVersion",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieSpeed",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetInforomConfigurationChecksum",
)
"""Functions that take a handle only."""

VERSIONS = (
    ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo"),
    ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    *(
        tuple(f"nvmlDeviceGet{kind}RunningProcesses{version}" for version in ("_v3", "_v2", ""))
        for kind in ("Compute", "Graphics", "MPSCompute")
    ),
)
"""Versions of one function that takes a handle, newest first: asked until one answers."""

WITH_ARGUMENTS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("nvmlDeviceGetTemperature", ((0,),)),
    ("nvmlDeviceGetTemperatureThreshold", ((0,), (1,), (2,), (3,))),
    ("nvmlDeviceGetClockInfo", ((0,), (1,), (2,))),
    ("nvmlDeviceGetMaxClockInfo", ((0,), (1,), (2,))),
    ("nvmlDeviceGetApplicationsClock", ((0,), (1,), (2,))),
    ("nvmlDeviceGetDefaultApplicationsClock", ((0,), (1,), (2,))),
    ("nvmlDeviceGetTotalEccErrors", ((0, 0), (0, 1), (1, 0), (1, 1))),
    ("nvmlDeviceGetMemoryErrorCounter", tuple((e, c, m) for e in (0, 1) for c in (0, 1) for m in (2, 7))),
    ("nvmlDeviceGetRetiredPages", ((0,), (1,))),
    ("nvmlDeviceGetViolationStatus", tuple((i,) for i in range(6))),
)

FIELDS = (29, 30, 31, 90, 91, 142, 143, 144, 145, 230)
"""Retired pages, NVLink speed and count, remapped rows, the recovery that the driver asks for."""
FIELD_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the value union by nvmlValueType_t."""

FABRIC = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
"""Function and the structure that it fills, newest first."""

P2P_INDICES = (0, 1, 2, 3, 4)
"""Read, write, NVLink, atomics, PCI, as numbers: the binding defines the first as a tuple."""
LINK_COUNTERS = (0, 1, 2, 3)
"""Replay, recovery, CRC of flits, CRC of data."""
MAX_LINKS = 18
"""Where the binding does not say more."""
MAX_MIG = 8
"""Instances that one GPU can be cut into, and one more."""
