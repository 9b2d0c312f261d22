"""NCCL's INFO lines, as releases from 2.18 on write them."""

from __future__ import annotations

from fsdp_doctor.probe.nccl_log import transports

ONE_NODE = """\
node-a:412:412 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.4<0>
node-a:412:412 [0] NCCL INFO NCCL version 2.26.2+cuda12.4
node-a:412:430 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
node-a:412:430 [0] NCCL INFO Using network Socket
node-a:412:430 [0] NCCL INFO NVLS multicast support is available on dev 0
node-a:412:430 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node-a:412:430 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node-a:412:430 [0] NCCL INFO 24 coll channels, 16 collnet channels, 16 nvls channels, 24 p2p channels
"""
TWO_NODES = """\
node-a:9:20 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>
node-a:9:20 [1] NCCL INFO Using network IB
node-a:9:20 [1] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-a:9:20 [1] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0
node-a:9:20 [1] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
node-a:9:20 [1] NCCL INFO NVLS multicast support is not available on dev 1
"""


def test_one_node() -> None:
    found = transports([ONE_NODE, ONE_NODE])
    assert found is not None
    assert (found.version, found.network, found.nvls) == ("2.26.2", "Socket", True)
    assert found.channels == ("P2P/CUMEM/read",)
    assert found.lines == ("Using network Socket", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read")


def test_two_nodes_with_host_memory() -> None:
    found = transports([TWO_NODES])
    assert found is not None
    assert found.network == "IB" and found.nvls is False
    assert found.channels == ("NET/IB/0/GDRDMA", "NET/IB/0", "SHM/direct/direct")


def test_nvls_that_is_there_and_not_used() -> None:
    found = transports([ONE_NODE.replace("16 nvls channels", "0 nvls channels")])
    assert found is not None and found.nvls is False


def test_nothing_said() -> None:
    assert transports([]) is None
    assert transports(["", "node-a:1:1 [0] NCCL INFO cudaDriverVersion 12040\n\0\n"]) is None
