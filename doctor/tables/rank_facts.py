"""What is compared between ranks, and by how much it may differ.

Sources: torch 2.13 `distributed/elastic/rendezvous/dynamic_rendezvous.py` (keep-alive 5 s, 3 attempts);
NCCL user guide; torch `distributed/run.py`.
"""

from __future__ import annotations

CHECKED_ON = "2026-12-02"

LIBRARIES: tuple[str, ...] = (
    "transformers", "accelerate", "peft", "trl", "datasets", "tokenizers", "safetensors", "deepspeed",
    "flash-attn", "flash-attn-3", "xformers", "transformer-engine", "triton", "torchao", "torchtitan",
    "torchtune", "torchdata", "torchvision", "torchaudio", "lightning", "pytorch-lightning", "composer",
    "llm-foundry", "mosaicml-streaming", "bitsandbytes", "liger-kernel", "apex", "numpy", "mamba-ssm",
    "causal-conv1d", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cublas-cu12",
    "aws-ofi-nccl",
)  # fmt: skip
"""Distributions that change models, kernels, data or communication, by normalised name."""
LIBRARIES_SHOWN = 5

CLOCK_WARN_SECONDS = 1.0
"""Logs of different nodes can no longer be put in order."""
CLOCK_FAIL_SECONDS = 60.0
"""Far beyond the 15 s after which a c10d rendezvous takes a silent node for dead."""

POWER_DIFFERENCE = 0.02
CLOCK_DIFFERENCE = 0.02
MEMORY_DIFFERENCE = 0.01
"""Relative; below it two boards of one model are equal."""
SIZE_DIFFERENCE = 0.01
"""Relative; two mounts of one file system report the same size, apart from what grew in between."""

YOUNG_NODE_SECONDS = 600.0
OLD_NODE_SECONDS = 86400.0
"""A node up for less than the first, among nodes up for more than the second, has just rebooted."""

PER_RANK_VARIABLES = frozenset(
    {
        "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_COMM_ID",
        "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_FILE",
        "NCCL_CONF_FILE", "NCCL_NET_PLUGIN", "NCCL_RAS_ADDR", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS",
        "NCCL_OOB_NET_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "NCCL_FASTRAK_IFNAME",
        "NCCL_TUNER_CONFIG_PATH", "GLOO_SOCKET_IFNAME", "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_HOME",
        "TORCH_LOGS_OUT", "TORCH_TRACE", "TORCH_EXTENSIONS_DIR", "TORCH_LOGS",
        "TORCH_SHOW_CPP_STACKTRACES", "TORCHELASTIC_ERROR_FILE", "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_HOME", "CUDA_PATH",
        "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "OMP_PLACES",
        "OMP_PROC_BIND", "UCX_NET_DEVICES", "FI_EFA_IFACE", "TORCH_CUDA_ARCH_LIST",
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
    }
)  # fmt: skip
"""May differ between ranks or hosts by design, or change nothing that ranks must agree in."""
PER_RANK_PREFIXES = ("OMPI_MCA_", "TORCHELASTIC_", "ACCELERATE_DEBUG", "CUDA_COREDUMP", "TORCH_NCCL_COREDUMP")
AGREE_PREFIX = "NCCL_"
"""Variables of NCCL itself must agree; a difference in the others is a warning."""

REFUSED = "connection refused"
TIMED_OUT = "timed out"
NO_ROUTE = "no route to host"
SILENT = "accepted, and no answer"
NO_NAME = "the name does not resolve"
BLOCKED = (REFUSED, TIMED_OUT, NO_ROUTE)
"""How a connection between ranks fails for a reason of the network, rather than of the process there."""
