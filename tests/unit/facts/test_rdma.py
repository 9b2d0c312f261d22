from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.rdma import rate, rdma
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.rdma import HcaPort, Rdma
from tests.unit.facts.literal import known, source


def rdma_of(machine: machines.Machine) -> Rdma:
    value = known(rdma(source_of(machine)))
    assert isinstance(value, Rdma)
    return value


def test_a_healthy_node() -> None:
    found = rdma_of(machines.h100())
    assert [h.name for h in found.hcas] == [f"mlx5_{i}" for i in range(8)]
    first = found.hcas[0]
    assert (first.firmware, first.hca_type, first.board_id) == ("28.43.2566", "MT4129", "MT_0000000838")
    assert (first.pci, first.numa_node, first.driver, first.verbs) == (
        "0000:18:00.0",
        0,
        "mlx5_core",
        "uverbs0",
    )
    (port,) = first.ports
    assert (port.number, port.state, port.phys_state) == (1, "ACTIVE", "LinkUp")
    assert (port.rate_gbps, port.link_layer, port.lid, port.sm_lid) == (400.0, "InfiniBand", 0x20, 1)
    assert port.counters["link_downed"] == 0
    assert port.counters["packet_seq_err"] == 0
    assert len(port.counters) == 11
    assert port.gid_types == {0: "IB/RoCE v1"}
    assert found.hcas[7].numa_node == 1


@pytest.mark.parametrize(
    ("machine", "count", "rate_gbps", "kind"),
    [
        (machines.a100(), 8, 200.0, "MT4123"),
        (machines.l40s(), 8, 400.0, "MT4129"),
        (machines.h100_container(), 8, 400.0, "MT4129"),
        (machines.job_node("n", "10.0.0.1/24"), 2, 400.0, "MT4126"),
    ],
    ids=["a100", "l40s", "container", "job_node"],
)
def test_the_other_machines(machine: machines.Machine, count: int, rate_gbps: float, kind: str) -> None:
    found = rdma_of(machine)
    assert [h.ports[0].rate_gbps for h in found.hcas] == [rate_gbps] * count
    assert {h.hca_type for h in found.hcas} == {kind}


@pytest.mark.parametrize("machine", [machines.geforce(), machines.h200_vm(), machines.laptop()])
def test_machines_without(machine: machines.Machine) -> None:
    found = rdma(source_of(machine))
    assert isinstance(found, Unknown)
    assert found.absent


def test_converged_ethernet() -> None:
    machine = machines.geforce()
    machine.hca(
        "rocep98s0",
        "pci0000:60/0000:60:03.1/0000:62:00.0",
        rate="100 Gb/sec (4X EDR)",
        layer="Ethernet",
        state="1: DOWN",
        phys="3: Disabled",
        netdev="enp98s0",
    )
    (hca,) = rdma_of(machine).hcas
    assert hca.driver == "ixgbe"
    (port,) = hca.ports
    assert (port.state, port.phys_state, port.link_layer, port.netdev) == (
        "DOWN",
        "Disabled",
        "Ethernet",
        "enp98s0",
    )
    assert port.gid_types == {0: "IB/RoCE v1", 3: "RoCE v2"}


def test_a_port_of_holes() -> None:
    base = "sys/class/infiniband/efa_0"
    found = known(
        rdma(
            source(
                {
                    f"{base}/ports/1/state": "weird",
                    f"{base}/ports/1/rate": "fast",
                    f"{base}/ports/1/counters/a": "12",
                    f"{base}/ports/1/counters/b": "N/A",
                    f"{base}/ports/1/gids/0": "0000:0000:0000:0000:0000:0000:0000:0000",
                    f"{base}/ports/1/gids/1": "fe80:0000:0000:0000:0000:0000:0000:0000",
                    f"{base}/ports/1/gid_attrs/types/0": "RoCE v2",
                    f"{base}/ports/x/state": "4: ACTIVE",
                }
            )
        )
    )
    assert isinstance(found, Rdma)
    assert found.hcas[0].ports == (HcaPort(1, state="weird", counters={"a": 12}),)
    assert (found.hcas[0].pci, found.hcas[0].verbs, found.hcas[0].driver) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "gbps"),
    [("400 Gb/sec (4X NDR)", 400.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), (None, None), ("x", None)],
)
def test_rates(line: str | None, gbps: float | None) -> None:
    assert rate(line) == gbps


def test_nothing_to_read() -> None:
    found = rdma(source())
    assert isinstance(found, Unknown)
    assert not found.absent
