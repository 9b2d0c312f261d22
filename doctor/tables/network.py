"""Figures and names about interfaces, ports and RDMA adapters.

Sources: NCCL 2.30 sources (interface order and exclusions) and user guide; Linux ip(7), tcp(7) and
`Documentation/networking/ip-sysctl.rst`; Azure's and gpud's health checks for flap limits; aws-ofi-nccl.
"""

from __future__ import annotations

from collections.abc import Mapping

CHECKED_ON = "2026-12-02"

DEFAULT_PORT = 29500
"""torchrun's and accelerate's port for a static rendezvous."""
PRIVILEGED_PORTS = 1024
SMALL_PORT_RANGE = 4096
TINY_PORT_RANGE = 256
"""Ephemeral ports. NCCL's bootstrap, its proxies and gloo open several per rank and peer."""

CONTAINER_PREFIXES = ("docker", "br-", "cni", "flannel", "cali", "cilium", "lxc", "lxdbr", "podman", "veth")
VIRTUAL_MACHINE_PREFIXES = ("virbr", "vnet", "vmnet", "vboxnet")
VPN_PREFIXES = ("tailscale", "wg", "tun", "tap", "zt", "utun", "ppp", "nebula", "ipsec", "vti")
HOST_ONLY_PREFIXES = ("docker", "br-", "cni", "podman", "lxdbr", "virbr", "vmnet", "vboxnet")
"""Bridges whose subnet exists once more on every other machine, so that no other node reaches the address."""
DUMMY_PREFIXES = ("dummy", "ifb", "sit", "ip6tnl", "gre", "erspan", "kube-ipvs", "nodelocaldns")
LOOPBACK = "lo"

NCCL_FIRST = "ib"
NCCL_EXCLUDED = ("docker", "lo", "virbr")
"""Names that NCCL takes only where nothing else runs, by prefix, in the order docker, lo, virbr."""

SLOW_NIC_MBPS = 1000
"""At or below, between nodes with GPUs and no RDMA, an all-gather of 1 GB takes more than 8 s."""
CARRIER_CHANGES = 20
"""The link went away and came back about ten times since the interface was made; a boot takes 2 to 4."""
NIC_ERRORS = 1000
NIC_ERROR_SHARE = 1e-6
"""Of packets, above which an error count matters (an Ethernet cable is good for 1e-12 per bit)."""
STANDARD_MTU = 1500

PORT_COUNTERS: Mapping[str, tuple[int, str]] = {
    "link_downed": (10, "the link was lost"),
    "link_error_recovery": (10, "the link retrained"),
    "symbol_error": (1000, "symbols were damaged on the wire"),
    "port_rcv_errors": (1000, "packets arrived damaged"),
    "port_xmit_discards": (10000, "packets were dropped for congestion or a dead link"),
    "local_link_integrity_errors": (10, "the receiver saw more errors than allowed"),
    "excessive_buffer_overrun_errors": (10, "the receiver's buffers overflowed"),
    "local_ack_timeout_err": (1000, "an acknowledgement did not come in time"),
    "rnr_nak_retry_err": (1000, "the receiver was not ready"),
    "packet_seq_err": (10000, "packets were lost and sent again"),
    "out_of_sequence": (10000, "packets arrived out of order"),
    "implied_nak_seq_err": (1000, "a response was lost"),
    "roce_adp_retrans_to": (1000, "adaptive retransmission timed out"),
}
"""sysfs counter -> count since the driver was loaded from which on it is a warning, and what it counts."""

FEW_OF_ALL = 4
"""NCCL_IB_HCA that keeps one of so many equal ports, or fewer, leaves most of the network idle."""

EFA_DRIVER = "efa"
EFA_NAMES = ("efa_", "rdmap")
"""Names of EFA devices; rdmap is also what udev calls other adapters, so the driver decides if known."""
NET_PLUGIN = "libnccl-net.so"
NET_PLUGIN_OFI = "libnccl-net-ofi.so"
INTERNAL_NETS = ("ib", "socket")

DMABUF_KERNEL = (5, 12)
"""First kernel whose RDMA core registers dma-buf memory."""
PEERMEM = "nvidia_peermem"
LEGACY_PEERMEM = ("nv_peer_mem", "nvidia_peer_memory")
