"""What a node's links are, from facts; and which GPUs are free."""

from __future__ import annotations

from dataclasses import replace

from fixtures import machines
from fixtures.machines import Machine
from fixtures.memory import source_of
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.probe.free_gpus import in_use
from fsdp_doctor.probe.node_links import node_links
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, GpuProcess, Gpus
from fsdp_doctor.subjects.rdma import Rdma


def facts(machine: Machine) -> Facts:
    return collect(source_of(machine), (Gpus, Rdma))


def test_an_h100_node() -> None:
    found = node_links("node-a", facts(machines.h100()), 8)
    assert found.gpus == 8 and "H100" in (found.gpu_name or "")
    assert found.nvlink_gbps is not None and 440 < found.nvlink_gbps < 460
    assert found.pcie_gbps is not None and 60 < found.pcie_gbps < 64
    assert found.p2p is True


def test_nothing_known() -> None:
    found = node_links("node-a", Facts({}), 2)
    assert (found.gpus, found.nvlink_gbps, found.pcie_gbps, found.nic_gbps, found.p2p) == (None,) * 5


def test_a_gpu_without_links_has_none_and_one_that_does_not_say_is_unknown() -> None:
    from fsdp_doctor.subjects.fact import Known

    def of(*gpus: Gpu) -> float | None:
        return node_links("a", Facts({Gpus: Known(Gpus(gpus), "")}), 8).nvlink_gbps

    assert of(Gpu(0, nvlinks=())) == 0.0
    assert of(Gpu(0, nvlinks=None)) is None
    assert of(Gpu(0, nvlinks=()), Gpu(1, nvlinks=None)) is None


def test_gpus_in_use() -> None:
    own = GpuProcess(1, 5 << 30, "python", own=True)
    other = GpuProcess(77, None, "python3")
    idle = Gpu(0, processes=(), memory_used=300 << 20)
    assert list(in_use([idle, replace(idle, processes=(own,), memory_used=5 << 30)])) == []
    assert list(in_use([replace(idle, index=3, processes=(own, other))])) == [
        "GPU 3 is used by process 77 (python3)"
    ]
    (hidden,) = in_use([replace(idle, memory_used=40 << 30)])
    assert "40.0 GiB" in hidden and "not shown" in hidden
