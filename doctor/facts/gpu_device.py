"""One `Gpu` from one entry of nvml.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.gpu_links import LINK_COUNT_FIELD, LINK_SPEED_FIELD, fabric, nvlinks
from fsdp_doctor.facts.gpu_processes import processes
from fsdp_doctor.facts.nvml_answers import Answers, error_of, integer, pci_address
from fsdp_doctor.facts.source import Json, Source, number
from fsdp_doctor.subjects.gpu import Gpu, RemappedRows, SramEcc

UNUSABLE = ("GpuIsLost", "ResetRequired", "NoAnswer")
"""Errors of a single getter that mean the whole GPU cannot be used; the last: the call never came back."""
OF_A_PAIR = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")
ECC_KINDS = ("corrected", "uncorrected")
ECC_COUNTERS = ("volatile", "aggregate")
SRAM = 7
GRAPHICS, SM, MEMORY = (0,), (1,), (2,)
SHUTDOWN, SLOWDOWN, MEMORY_MAX = (0,), (1,), (2,)
RECOVERY_FIELD = 230
REMAP_BANKS = ("max", "high", "partial", "low", "none")


def gpu(source: Source, index: int, entry: Json) -> Gpu:
    """The GPU at an NVML index. Every field whose getter failed is None, with the error in `errors`."""
    if not isinstance(entry, Mapping):
        return Gpu(index, lost="Unknown")
    failed = error_of(entry)
    if failed is not None:
        return Gpu(index, lost=failed, errors={"nvmlDeviceGetHandleByIndex": failed})
    a = Answers(entry)
    errors = a.errors()
    bdf = pci_address(a.struct("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo"))
    ecc_now, ecc_next = _pair(a, "nvmlDeviceGetEccMode")
    mig_now, mig_next = _pair(a, "nvmlDeviceGetMigMode")
    power_range = a.integers("nvmlDeviceGetPowerManagementLimitConstraints", 2)
    v1, v2 = a.struct("nvmlDeviceGetMemoryInfo") or {}, a.struct("nvmlDeviceGetMemoryInfo_v2") or {}
    capability = a.integers("nvmlDeviceGetCudaComputeCapability", 2)
    repairs = a.integers("nvmlDeviceGetRepairStatus")
    return Gpu(
        index,
        name=a.text("nvmlDeviceGetName"),
        uuid=a.text("nvmlDeviceGetUUID"),
        minor=a.integer("nvmlDeviceGetMinorNumber"),
        bdf=bdf,
        lost=_lost(errors),
        capability=(capability[0], capability[1]) if capability else None,
        architecture=a.integer("nvmlDeviceGetArchitecture"),
        brand=a.integer("nvmlDeviceGetBrand"),
        cores=a.integer("nvmlDeviceGetNumGpuCores"),
        memory_total=_either(v2, v1, "total"),
        memory_reserved=integer(v2.get("reserved")),
        memory_used=integer(v2.get("used")),
        memory_used_v1=integer(v1.get("used")),
        memory_free=_either(v2, v1, "free"),
        processes=processes(source, a, "nvmlDeviceGetComputeRunningProcesses"),
        graphics_processes=processes(source, a, "nvmlDeviceGetGraphicsRunningProcesses"),
        mps_processes=processes(source, a, "nvmlDeviceGetMPSComputeRunningProcesses"),
        ecc_current=ecc_now if ecc_now is not None else a.flag("nvmlDeviceGetCurrentEccMode"),
        ecc_pending=ecc_next if ecc_next is not None else a.flag("nvmlDeviceGetPendingEccMode"),
        ecc=_ecc(a),
        sram_corrected=_sram_corrected(a),
        sram=_sram(a),
        remapped=_remapped(a),
        remap_histogram=_histogram(a),
        retired_pages=_retired(a),
        retired_pending=a.flag("nvmlDeviceGetRetiredPagesPendingStatus"),
        recovery_action=a.field(RECOVERY_FIELD),
        repair_pending=None if repairs is None else any(repairs),
        unrepairable_memory=a.flag("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
        clocks_event_reasons=a.integer(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        ),
        violation_ns=_violations(a),
        temperature=_temperature(a),
        temperature_margin=a.integer("nvmlDeviceGetMarginTemperature"),
        temperature_slowdown=a.integer("nvmlDeviceGetTemperatureThreshold", args=SLOWDOWN),
        temperature_shutdown=a.integer("nvmlDeviceGetTemperatureThreshold", args=SHUTDOWN),
        temperature_memory_max=a.integer("nvmlDeviceGetTemperatureThreshold", args=MEMORY_MAX),
        power_usage=a.integer("nvmlDeviceGetPowerUsage"),
        power_limit=a.integer("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"),
        power_default=a.integer("nvmlDeviceGetPowerManagementDefaultLimit"),
        power_max=power_range[1] if power_range else None,
        clock_sm=_sm_clock(a, "nvmlDeviceGetClockInfo"),
        clock_sm_max=_sm_clock(a, "nvmlDeviceGetMaxClockInfo"),
        clock_sm_app=_sm_clock(a, "nvmlDeviceGetApplicationsClock"),
        clock_sm_app_default=_sm_clock(a, "nvmlDeviceGetDefaultApplicationsClock"),
        clock_mem=a.integer("nvmlDeviceGetClockInfo", args=MEMORY),
        clock_mem_max=a.integer("nvmlDeviceGetMaxClockInfo", args=MEMORY),
        utilization=integer((a.struct("nvmlDeviceGetUtilizationRates") or {}).get("gpu")),
        performance_state=a.integer("nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState"),
        persistence=a.flag("nvmlDeviceGetPersistenceMode"),
        mig_current=mig_now,
        mig_pending=mig_next,
        compute_mode=a.integer("nvmlDeviceGetComputeMode"),
        virtualization_mode=a.integer("nvmlDeviceGetVirtualizationMode"),
        pcie_gen=a.integer("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_gen_max=a.integer("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_gen_gpu_max=a.integer("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        pcie_width=a.integer("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=a.integer("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_replays=a.integer("nvmlDeviceGetPcieReplayCounter"),
        numa_node=_numa_node(source, bdf),
        nvlinks=nvlinks(a),
        nvlink_count=a.field(LINK_COUNT_FIELD),
        nvlink_mbps=a.field(LINK_SPEED_FIELD),
        fabric=fabric(a),
        p2p={(k[0], k[1]): v for k, v in a.integers_by_args("nvmlDeviceGetP2PStatus", 2).items()},
        common_ancestor={
            k[0]: v for k, v in a.integers_by_args("nvmlDeviceGetTopologyCommonAncestor", 1).items()
        },
        gsp_mode=a.integers("nvmlDeviceGetGspFirmwareMode"),
        gsp_version=a.text("nvmlDeviceGetGspFirmwareVersion"),
        vbios=a.text("nvmlDeviceGetVbiosVersion"),
        inforom=a.text("nvmlDeviceGetInforomImageVersion"),
        inforom_valid=_inforom_valid(a),
        board_part=a.text("nvmlDeviceGetBoardPartNumber"),
        errors=errors,
    )


def _lost(errors: Mapping[str, str]) -> str | None:
    """A GPU that went after its handle was had. Functions of a pair may speak of the other GPU."""
    own = [e for f, e in errors.items() if not f.startswith(OF_A_PAIR)]
    return next((e for e in UNUSABLE if e in own), None)


def _pair(a: Answers, function: str) -> tuple[bool | None, bool | None]:
    """A mode as it is and as it will be after the next reset."""
    values = a.integers(function, 2)
    return (values[0] != 0, values[1] != 0) if values else (None, None)


def _either(v2: Mapping[str, Json], v1: Mapping[str, Json], name: str) -> int | None:
    value = integer(v2.get(name))
    return value if value is not None else integer(v1.get(name))


def _sm_clock(a: Answers, function: str) -> int | None:
    """NVML answers for the SM domain, or only for graphics, which runs at the same clock."""
    value = a.integer(function, args=SM)
    return value if value is not None else a.integer(function, args=GRAPHICS)


def _temperature(a: Answers) -> int | None:
    sensor = a.struct("nvmlDeviceGetTemperatureV")
    value = integer(sensor.get("temperature")) if sensor else a.integer("nvmlDeviceGetTemperatureV")
    return value if value is not None else a.integer("nvmlDeviceGetTemperature", args=(0,))


def _numa_node(source: Source, bdf: str | None) -> int | None:
    """The host's node next to the GPU. NVML's own getter means the node of a coherent GPU's memory."""
    node = number(source, f"/sys/bus/pci/devices/{bdf}/numa_node") if bdf else None
    return node if node is not None and node >= 0 else None


def _ecc(a: Answers) -> dict[tuple[str, str], int]:
    counts = a.integers_by_args("nvmlDeviceGetTotalEccErrors", 2)
    return {
        (ECC_KINDS[kind], ECC_COUNTERS[counter]): n
        for (kind, counter), n in counts.items()
        if kind in (0, 1) and counter in (0, 1)
    }


def _sram_corrected(a: Answers) -> int | None:
    status = a.struct("nvmlDeviceGetSramEccErrorStatus") or {}
    value = integer(status.get("volatileCor"))
    return value if value is not None else a.integer("nvmlDeviceGetMemoryErrorCounter", args=(0, 0, SRAM))


def _sram(a: Answers) -> SramEcc | None:
    status = a.struct("nvmlDeviceGetSramEccErrorStatus")
    if status is None:
        return None
    uncorrectable = {
        kind: [integer(status.get(f"{kind}Unc{part}")) for part in ("Parity", "SecDed")]
        for kind in ECC_COUNTERS
    }
    if all(n is None for numbers in uncorrectable.values() for n in numbers):
        return None
    volatile, aggregate = (sum(n or 0 for n in uncorrectable[kind]) for kind in ECC_COUNTERS)
    return SramEcc(volatile, aggregate, bool(integer(status.get("bThresholdExceeded"))))


def _remapped(a: Answers) -> RemappedRows | None:
    rows = a.integers("nvmlDeviceGetRemappedRows", 4)
    return RemappedRows(rows[0], rows[1], rows[2] != 0, rows[3] != 0) if rows else None


def _histogram(a: Answers) -> dict[str, int] | None:
    banks = a.struct("nvmlDeviceGetRowRemapperHistogram")
    if banks is None:
        return None
    counts = {name: n for name in REMAP_BANKS if (n := integer(banks.get(name))) is not None}
    return counts or None


def _retired(a: Answers) -> int | None:
    """Pages retired for either cause."""
    for function in ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages"):
        by_cause = a.by_args(function)
        lists = [v for v in (by_cause.values() if by_cause else (a.first(function),)) if _is_list(v)]
        if lists:
            return sum(len(v) for v in lists if isinstance(v, Sequence))
    return None


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _violations(a: Answers) -> dict[int, int]:
    found = {}
    for args, value in a.by_args("nvmlDeviceGetViolationStatus").items():
        time = integer(value.get("violationTime")) if isinstance(value, Mapping) else None
        if len(args) == 1 and time is not None:
            found[args[0]] = time
    return found


def _inforom_valid(a: Answers) -> bool | None:
    """True and false only where NVML validated it, or where reading it found it corrupted."""
    names = ("nvmlDeviceValidateInforom", "nvmlDeviceGetInforomConfigurationChecksum")
    if any(a.error(n) == "CorruptedInforom" for n in names):
        return False
    return True if any(n in a.raw and a.error(n) is None for n in names) else None
