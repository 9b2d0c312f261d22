"""What makes training slow, as far as logs tell."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.SLOW)
V, C, R, L, K = Kind.VICTIM, Kind.CONTEXT, Kind.ROOT, Kind.LIKELY, Kind.CONFIRMS

SLOW: tuple[Signature, ...] = (
    _s(
        "LOG401", C, 30, "NCCL uses TCP sockets",
        ("NET/Socket : Using [0]", "Using network Socket"), r"NET/Socket : Using \[0\](?P<if>[^:\s]+)?|Using network Socket",
        why="Between nodes that is several times slower than InfiniBand or RoCE; inside one node it does not matter.",
        fix="Load ibverbs, pass /dev/infiniband into the container, unset NCCL_IB_DISABLE", sources="nccl, NCCL_DEBUG=INFO",
        sample="node1:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    ),
    _s(
        "LOG402", C, 25, "NCCL found no InfiniBand",
        ("NET/IB : No device found", "Failed to open libibverbs"), r"NET/IB : No device found|Failed to open libibverbs",
        why="The reason why NCCL falls back to sockets.", fix="Install libibverbs1 and rdma-core, and pass the devices into the container", sources="nccl net_ib",
        sample="NCCL WARN Failed to open libibverbs.so[.1]",
    ),
    _s(
        "LOG403", L, 55, "GPUs connected by NVLink do not talk directly",
        ("P2P is disabled between NVLINK", "Could not enable P2P between dev"),
        r"P2P is disabled between NVLINK connected GPUs (?P<a>\d+) and (?P<b>\d+)|Could not enable P2P between dev (?P<a2>\d+)",
        scope=Scope.HOST, says="P2P is off between the NVLink-connected GPUs {a} and {b}", why="IOMMU or ACS settings, a container, or NCCL_P2P_DISABLE; bytes go through host memory.",
        fix="Unset NCCL_P2P_DISABLE, and turn ACS off on the PCIe switches", command="nvidia-smi topo -p2p r", sources="nccl",
        sample="NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity",
    ),
    _s(
        "LOG404", C, 20, "GPUDirect RDMA is not used",
        ("GPU Direct RDMA Disabled", "nvidia_peermem"), r"GPU Direct RDMA Disabled for (?:GPU|HCA)|no .*nvidia_peermem",
        why="Data between nodes takes a detour through host memory.", fix="Load nvidia_peermem, or use a kernel with DMA-BUF", command="modprobe nvidia_peermem", sources="nccl",
        sample="NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    ),
    _s(
        "LOG405", R, 70, "A GPU is throttled",
        ("Slowdown", "SW Power Cap"), r"(?P<what>HW (?:Thermal |Power Brake )?Slowdown|SW Thermal Slowdown)\s*: Active",
        scope=Scope.DEVICE, says="a GPU is throttled: {what}", why="All ranks run at the pace of the slowest GPU.", fix="Look at cooling and power of that GPU", command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE", sources="nvidia-smi -q",
        sample="        HW Thermal Slowdown                : Active",
    ),
    _s(
        "LOG406", C, 2, "torchrun set OMP_NUM_THREADS to 1",
        "Setting OMP_NUM_THREADS", r"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        why="A default that is harmless unless the CPU prepares data in the main process.", fix="Set OMP_NUM_THREADS to cores / ranks", sources="torch/distributed/run.py",
        sample="Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    ),
    _s(
        "LOG407", L, 45, "torch.compile recompiles again and again",
        "torch._dynamo hit config", r"torch\._dynamo hit config\.(?P<what>\w*(?:recompile|cache_size)_limit)",
        says="torch.compile gave up after {what}", why="Shapes change from step to step, and each change compiles anew; while one rank compiles, all wait.",
        fix="Mark dynamic dimensions, or pad to few shapes", sources="torch/_dynamo", sample="torch._dynamo hit config.recompile_limit (8)",
    ),
)
