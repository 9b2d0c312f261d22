"""What the NVIDIA driver and NVML answer. A field is None where NVML gave no answer; see `Gpu.errors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver as the kernel, the file system and NVML name it."""

    kernel_version: str | None = None
    """/proc/driver/nvidia/version or /sys/module/nvidia/version."""
    open_module: bool | None = None
    nvml_version: str | None = None
    """The driver version that NVML answers (nvmlSystemGetDriverVersion)."""
    library_version: str | None = None
    """From the file name that libcuda.so.1 resolves to."""
    cuda_version: int | None = None
    """Newest CUDA of the driver as 1000*major + 10*minor."""
    nvml_error: str | None = None
    """NVML's exception name without NVMLError_ where it did not start, such as DriverNotLoaded."""
    modules: tuple[str, ...] = ()
    """Loaded kernel modules that matter: nvidia*, nouveau, nv_peer_mem, gdrdrv, ib_*, mlx*."""
    bound: Mapping[str, str] = field(default_factory=dict)
    """PCI address of an NVIDIA GPU -> bound kernel driver."""
    proc_gpus: Mapping[str, str] = field(default_factory=dict)
    """PCI address -> model, from /proc/driver/nvidia/gpus."""
    conf_compute: bool | None = None
    conf_compute_devtools: bool | None = None

    @property
    def version(self) -> str | None:
        """The version to judge by: the kernel module's, else NVML's."""
        return self.kernel_version or self.nvml_version


@dataclass(frozen=True, slots=True)
class NvLink:
    """One link of one GPU. `errors` holds the counters replay, recovery, crc_flit, crc_data."""

    index: int
    active: bool | None
    remote_type: int | None = None
    """NVML_NVLINK_DEVICE_TYPE_*: 0 GPU, 1 IBM NPU, 2 switch, 255 unknown."""
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fabric:
    """nvmlDeviceGetGpuFabricInfoV: state 0 not supported, 1 not started, 2 in progress, 3 completed."""

    state: int
    status: int = 0
    clique_id: int | None = None
    cluster_uuid: str | None = None
    health_mask: int = 0
    health_summary: int | None = None


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """nvmlDeviceGetRemappedRows."""

    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True)
class SramEcc:
    """nvmlDeviceGetSramEccErrorStatus, uncorrectable = parity + SEC-DED."""

    volatile_uncorrectable: int
    aggregate_uncorrectable: int
    threshold_exceeded: bool


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU; bytes are None where the driver hides them."""

    pid: int
    used_bytes: int | None
    name: str | None = None
    uid: int | None = None
    own: bool = False
    """It is this tool or a process that this tool started."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU by NVML index. Bytes, milliwatts, MHz, degrees Celsius."""

    index: int
    name: str | None = None
    uuid: str | None = None
    minor: int | None = None
    bdf: str | None = None
    """PCI address in sysfs's form, 0000:1b:00.0."""
    lost: str | None = None
    """NVML's error name when the handle could not be had, such as GpuIsLost."""
    capability: tuple[int, int] | None = None
    architecture: int | None = None
    brand: int | None = None
    cores: int | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    memory_used: int | None = None
    """Without the driver's reserve (MemoryInfo_v2); None if only version 1 answered."""
    memory_used_v1: int | None = None
    memory_free: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    graphics_processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    ecc_current: bool | None = None
    ecc_pending: bool | None = None
    ecc: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """("corrected"|"uncorrected", "volatile"|"aggregate") -> count (nvmlDeviceGetTotalEccErrors)."""
    sram_corrected: int | None = None
    """Volatile corrected errors of SRAM where NVML tells them apart."""
    sram: SramEcc | None = None
    remapped: RemappedRows | None = None
    remap_histogram: Mapping[str, int] | None = None
    """Banks by free remap rows: max, high, partial, low, none."""
    retired_pages: int | None = None
    retired_pending: bool | None = None
    recovery_action: int | None = None
    """Field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset."""
    repair_pending: bool | None = None
    unrepairable_memory: bool | None = None
    clocks_event_reasons: int | None = None
    violation_ns: Mapping[int, int] = field(default_factory=dict)
    """NVML_PERF_POLICY_* -> accumulated nanoseconds."""
    temperature: int | None = None
    temperature_margin: int | None = None
    temperature_slowdown: int | None = None
    temperature_shutdown: int | None = None
    temperature_memory_max: int | None = None
    power_usage: int | None = None
    power_limit: int | None = None
    """Enforced limit."""
    power_default: int | None = None
    power_max: int | None = None
    clock_sm: int | None = None
    clock_sm_max: int | None = None
    clock_sm_app: int | None = None
    clock_sm_app_default: int | None = None
    clock_mem: int | None = None
    clock_mem_max: int | None = None
    performance_state: int | None = None
    persistence: bool | None = None
    mig_current: bool | None = None
    mig_pending: bool | None = None
    compute_mode: int | None = None
    """0 default, 2 prohibited, 3 exclusive process."""
    virtualization_mode: int | None = None
    """0 none, 1 passthrough, 2 vGPU, 3 host vGPU, 4 host vSGA."""
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_gen_gpu_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    numa_node: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    """Empty: has none. None: NVML would not say."""
    nvlink_count: int | None = None
    """Field 91."""
    nvlink_mbps: int | None = None
    """Field 90, MB/s per link and direction."""
    fabric: Fabric | None = None
    p2p: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(peer index, NVML_P2P_CAPS_INDEX: 0 read 1 write 2 nvlink 3 atomics 4 pci) -> status, 0 is OK."""
    common_ancestor: Mapping[int, int] = field(default_factory=dict)
    """Peer index -> level: 0 internal 10 single 20 multiple 30 hostbridge 40 node 50 system."""
    gsp_mode: tuple[int, ...] | None = None
    gsp_version: str | None = None
    vbios: str | None = None
    inforom: str | None = None
    inforom_valid: bool | None = None
    board_part: str | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    """NVML function -> error name for everything that gave none of the answers above."""
    utilization: int | None = None
    """Per cent of the last moments in which a kernel ran."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs that NVML counts, lost ones included. Never empty: no GPU is an unknown fact."""

    devices: tuple[Gpu, ...]
    count: int | None = None
    """nvmlDeviceGetCount."""
    visible: tuple[int, ...] | None = None
    """Indices that CUDA_VISIBLE_DEVICES leaves, in its order; None where it is not set."""

    @property
    def present(self) -> tuple[Gpu, ...]:
        """Those with a handle."""
        return tuple(g for g in self.devices if g.lost is None)
