"""Published healthy machines pass, sick ones are called what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.probes import FABRIC, H200_LINKS, Bench
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.subjects.fabric import Expectation, Fabric
from fsdp_doctor.subjects.probe import ProbeResult, Transports
from fsdp_doctor.tables.fabric_figures import nvlink_product, pcie_ring

MIB, GIB = 1 << 20, 1 << 30
OPS = ("all_gather", "reduce_scatter", "all_reduce")


def sxm(name: str, nvlink: float | None, **more: object) -> dict[str, object]:
    return {"gpus": 8, "gpu_name": name, "nvlink_gbps": nvlink, "pcie_gbps": 63.0, "p2p": True, **more}


def pcie(name: str, gbps: float, p2p: bool) -> dict[str, object]:
    return {"gpus": 8, "gpu_name": name, "nvlink_gbps": 0.0, "pcie_gbps": gbps, "p2p": p2p}


def judged(
    links: dict[str, object],
    rates: tuple[float, float, float],
    *,
    nodes: int = 1,
    per_node: int = 8,
    **more: object,
) -> Fabric:
    bench = Bench(
        world=per_node * nodes,
        nodes=nodes,
        device="cuda",
        links=links,
        busbw=dict(zip(OPS, rates, strict=True)),
        sweep=(64 << 10, GIB),
        groups=False,
        **more,  # type: ignore[arg-type]
    )
    return conclude(bench.measured())


HEALTHY = [
    ("A100 node", sxm("NVIDIA A100-SXM4-80GB", 300.0), (228, 228, 234.9), 1, 8),
    ("H100 node", sxm("NVIDIA H100 80GB HBM3", 450.0), (357, 357, 460), 1, 8),
    ("H200 node", sxm("NVIDIA H200", 450.0), (361, 363, 480), 1, 8),
    ("H200 node, rings only", sxm("NVIDIA H200", 450.0), (361, 363, 367), 1, 8),
    ("H200 virtual machine whose NVML is silent on links", sxm("NVIDIA H200", None), (361, 363, 480), 1, 8),
    ("four H200", sxm("NVIDIA H200", 450.0), (363, 363, 363), 1, 4),
    ("H800 node", sxm("NVIDIA H800", 200.0), (160, 160, 215), 1, 8),
    ("B200 node", sxm("NVIDIA B200", 900.0), (682, 682, 838), 1, 8),
    ("V100 node", sxm("Tesla V100-SXM2-32GB", 150.0), (118, 118, 120), 1, 8),
    ("L40S over PCIe", pcie("NVIDIA L40S", 31.5, True), (17, 17, 17), 1, 8),
    ("eight 4090", pcie("NVIDIA GeForce RTX 4090", 31.5, False), (9, 9, 9), 1, 8),
    ("eight 5090", pcie("NVIDIA GeForce RTX 5090", 63.0, False), (28, 28, 28), 1, 8),
    (
        "4 nodes of H200 on EFA",
        sxm("NVIDIA H200", 450.0, nic_gbps=400.0, nics=32, nic_kind="EFA"),
        (330, 330, 365),
        4,
        8,
    ),
    (
        "4 nodes of B200",
        sxm("NVIDIA B200", 900.0, nic_gbps=400.0, nics=8, nic_kind="InfiniBand"),
        (370, 370, 380),
        4,
        8,
    ),
    (
        "P4d, 4x100 EFA",
        sxm("NVIDIA A100-SXM4-40GB", 300.0, nic_gbps=50.0, nics=4, nic_kind="EFA"),
        (40, 40, 41),
        2,
        8,
    ),
    ("32 nodes", sxm("NVIDIA H100 80GB HBM3", 450.0, **FABRIC), (200, 200, 340), 32, 8),
    (
        "sockets on 100 GbE",
        sxm("NVIDIA H200", 450.0, nic_gbps=12.5, nics=1, nic_kind="Ethernet"),
        (4, 4, 4),
        2,
        8,
    ),
    ("25 GbE", sxm("NVIDIA H200", 450.0, nic_gbps=3.1, nics=1, nic_kind="Ethernet"), (1.0, 1.0, 1.1), 2, 8),
]


@pytest.mark.parametrize(
    ("what", "links", "rates", "nodes", "per_node"), HEALTHY, ids=[h[0] for h in HEALTHY]
)
def test_published_machines_pass(
    what: str, links: dict[str, object], rates: tuple[float, float, float], nodes: int, per_node: int
) -> None:
    found = judged(links, rates, nodes=nodes, per_node=per_node)
    assert (found.shortfalls, found.detours, found.unexpected) == ((), (), "")
    assert len(found.expectations) == 3


@pytest.mark.parametrize("size", [512 * MIB, GIB])
def test_b200_sweep_passes_where_its_curve_still_bends(size: int) -> None:
    """682 GB/s at 16 GiB with 92 us of latency are 600 GB/s at 512 MiB."""
    bench = Bench(
        world=8,
        device="cuda",
        links=sxm("NVIDIA B200", 900.0),
        ops=("all_gather",),
        busbw={"all_gather": 680.0},
        sweep=(size,),
    )
    bench.latency = lambda: 92e-6  # type: ignore[method-assign]
    found = conclude(bench.measured())
    assert found.shortfalls == () and found.expectations


def test_levels() -> None:
    near = judged(sxm("NVIDIA H200", 450.0), (330, 363, 480))
    assert near.shortfalls == ()  # 0.95 of the low end passes
    below = judged(sxm("NVIDIA H200", 450.0), (290, 363, 480))
    (s,) = below.shortfalls
    assert s.op == "all_gather" and 0.75 < s.ratio < 0.95 and s.confirmed and not s.detour
    far = judged(sxm("NVIDIA H200", 450.0), (200, 200, 480))
    assert {x.op for x in far.shortfalls} == {"all_gather", "reduce_scatter"} and far.detours == ()
    wrong = judged(sxm("NVIDIA H200", 450.0), (30, 30, 30))
    assert all(x.detour for x in wrong.shortfalls) and len(wrong.detours) == 1


def test_an_all_reduce_with_sharp_is_no_yardstick() -> None:
    found = judged(sxm("NVIDIA H200", 450.0), (250, 250, 480))
    assert {s.op for s in found.shortfalls} == {"all_gather", "reduce_scatter"}
    assert all(s.expected.high <= 370 for s in found.shortfalls)
    expected = {e.op: e.high for e in found.expectations}
    assert expected["all_reduce"] >= 480 > expected["all_gather"]


def test_small_sizes_are_never_held_against_a_bandwidth() -> None:
    """16 MiB on four healthy nodes is an eighth of the adapters' rate."""
    bench = Bench(
        world=32, nodes=4, device="cuda", busbw=dict.fromkeys(OPS, 50.0), sweep=(16 * MIB, 256 * MIB)
    )
    found = conclude(bench.measured())
    assert found.shortfalls == () and "512 MiB" in found.unexpected


def test_one_good_run_of_two_is_what_can_be_reached() -> None:
    slow = Bench(world=8, device="cuda", busbw=dict.fromkeys(OPS, 200.0), repeat=False).measured()
    fast = Bench(world=8, device="cuda", busbw=dict.fromkeys(OPS, 362.0), repeat=False).measured()
    merged = replace(
        slow,
        ranks=tuple(
            replace(a, collectives=(*a.collectives, *(replace(c, run=1) for c in b.collectives)))
            for a, b in zip(slow.ranks, fast.ranks, strict=True)
        ),
    )
    assert len(conclude(slow).shortfalls) == 3 and conclude(merged).shortfalls == ()


PATHS = [
    ("PCIe instead of NVLink", sxm("NVIDIA H200", 450.0), (28, 28, 28), 1),
    (
        "host memory (SHM) instead of NVLink",
        sxm("NVIDIA A100-SXM4-80GB", 300.0, pcie_gbps=31.0),
        (9, 9, 9),
        1,
    ),
    ("one adapter instead of all", sxm("NVIDIA H200", 450.0, **FABRIC), (46, 46, 46), 2),
    ("TCP sockets instead of RDMA", sxm("NVIDIA H200", 450.0, **FABRIC), (4.5, 4.5, 4.5), 2),
]


@pytest.mark.parametrize(("path", "links", "rates", "nodes"), PATHS, ids=[p[0] for p in PATHS])
def test_the_wrong_path_is_named_by_its_bandwidth(
    path: str, links: dict[str, object], rates: tuple[float, float, float], nodes: int
) -> None:
    (d,) = judged(links, rates, nodes=nodes).detours
    assert path in d.path and "by its bandwidth" in d.path and len(d.evidence) >= 3


def with_transports(result: ProbeResult, **used: object) -> Fabric:
    return conclude(replace(result, transports=Transports(**used)))  # type: ignore[arg-type]


def test_the_transport_in_use_decides_not_the_variable() -> None:
    """NCCL_IB_DISABLE=1 with an external plug-in that keeps RDMA is no socket fallback."""
    healthy = replace(
        Bench(world=16, nodes=2, device="cuda").measured(), environment={"NCCL_IB_DISABLE": "1"}
    )
    assert (
        with_transports(healthy, network="AWS Libfabric", channels=("NET/AWS Libfabric/0/GDRDMA",)).detours
        == ()
    )
    (d,) = with_transports(healthy, network="Socket", channels=("NET/Socket/0", "P2P/CUMEM")).detours
    assert "TCP sockets instead of InfiniBand" in d.path and d.variables == ("NCCL_IB_DISABLE=1",)


def test_sockets_named_on_one_node_are_not_used() -> None:
    healthy = Bench(world=8, device="cuda").measured()
    assert with_transports(healthy, network="Socket", channels=("P2P/CUMEM", "NVLS")).detours == ()
    (d,) = with_transports(healthy, network="Socket", channels=("SHM/direct/direct",)).detours
    assert "P2P is off" in d.path


def test_geforce_through_host_memory_is_as_it_must_be() -> None:
    healthy = Bench(
        world=8,
        device="cuda",
        links=pcie("NVIDIA GeForce RTX 4090", 31.5, False),
        busbw=dict.fromkeys(OPS, 9.0),
    ).measured()
    assert with_transports(healthy, network="Socket", channels=("SHM/direct/direct",)).detours == ()


def test_traffic_of_adapters_is_evidence() -> None:
    result = Bench(world=16, nodes=2, device="cuda", busbw=dict.fromkeys(OPS, 4.5)).measured()
    idle = {f"ib/mlx5_{i}:1/port_xmit_data": 5 for i in range(8)}
    ranks = tuple(replace(r, counters_before=idle, counters_after=idle) for r in result.ranks)
    (d,) = conclude(replace(result, ranks=ranks)).detours
    assert any("no adapter of 8 carried traffic" in e for e in d.evidence)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Bench().measured(), "gloo"),
        (Bench(world=1, device="cuda").measured(), "one rank"),
        (replace(Bench(world=8, device="cuda").measured(), links=()), "not known"),
        (judged, "adapters"),
    ],
    ids=["cpu", "one rank", "no links", "no adapters"],
)
def test_nothing_is_expected_where_nothing_is_known(result: object, reason: str) -> None:
    if not isinstance(result, ProbeResult):
        found = judged(dict(H200_LINKS), (100, 100, 100), nodes=2)
    else:
        found = conclude(result)
    assert found.expectations == () and reason in found.unexpected and found.shortfalls == ()


def test_a_soft_expectation_is_marked() -> None:
    found = judged(pcie("NVIDIA L40S", 31.5, True), (8, 8, 8))
    assert found.shortfalls and not any(s.expected.firm for s in found.shortfalls)


def test_expected_low_end_by_size() -> None:
    e = Expectation("all_gather", 345, 370, "", 20 * MIB)
    assert e.low_at(GIB) == pytest.approx(338.4, rel=1e-3)
    assert e.low_at(20 * MIB) == pytest.approx(172.5) and e.low_at(0) == 0


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H200", 450),
        ("NVIDIA H20", 450),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GB200", 900),
        ("NVIDIA B300 SXM6 AC", 900),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA A100-SXM4-40GB", 300),
        ("NVIDIA L40S", None),
        (None, None),
    ],
)
def test_products(name: str | None, total: float | None) -> None:
    found = nvlink_product(name)
    assert (found.total if found else None) == total


def test_pcie_rows() -> None:
    assert pcie_ring(63.0) is not pcie_ring(31.5)
    assert pcie_ring(10.0) is None and pcie_ring(None) is None


def test_jitter_and_latency() -> None:
    found = conclude(Bench(world=8, device="cuda").measured())
    assert found.jitters == () and found.unsteady == ""
    assert {x.op for x in found.latencies} == set(OPS) and all(x.seconds < x.limit for x in found.latencies)
    assert "share" in conclude(Bench().measured()).unsteady
    assert "ran 20 times" in conclude(Bench(world=8, device="cuda", iterations=8).measured()).unsteady
