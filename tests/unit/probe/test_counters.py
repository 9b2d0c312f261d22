"""Counters around a probe."""

from __future__ import annotations

from fsdp_doctor.facts.recorded import MemoryTree, RecordedSource
from fsdp_doctor.probe.counters import Counters, adapters, parse
from fsdp_doctor.probe.session import with_counters
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_counters import counter


def test_adapters_are_named_as_the_table_names_them() -> None:
    port = "root/sys/class/infiniband/mlx5_0/ports/1"
    files = {
        "manifest.json": b'{"schema": "fsdp-doctor-recording/1"}',
        f"{port}/counters/symbol_error": b"3\n",
        f"{port}/counters/port_xmit_data": b"1234\n",
        f"{port}/hw_counters/out_of_sequence": b"rubbish\n",
        "root/sys/class/net/eth0/statistics/rx_bytes": b"99\n",
        "root/sys/class/net/eth0/statistics/rx_dropped": b"1\n",
        "root/sys/class/net/lo/statistics/rx_bytes": b"5\n",
    }
    found = adapters(RecordedSource(MemoryTree(files)))
    assert found == {
        "ib/mlx5_0:1/symbol_error": 3,
        "ib/mlx5_0:1/port_xmit_data": 1234,
        "net/eth0/rx_bytes": 99,
        "net/eth0/rx_dropped": 1,
    }
    assert all(counter(name) is not None for name in found)


def test_gpus_counters_go_to_their_ranks_and_the_hosts_to_one() -> None:
    ranks = tuple(RankMeasurement(r, gpu_uuid=f"GPU-{r}") for r in range(2))
    result = ProbeResult(2, "nccl", ProbePlan("nccl"), ranks)
    before = Counters({"net/eth0/rx_bytes": 1}, {"GPU-0": {"pcie/replay": 0}, "GPU-1": {"pcie/replay": 5}})
    after = Counters({"net/eth0/rx_bytes": 2}, {"GPU-1": {"pcie/replay": 6}})
    first, second = with_counters(result, before, after).ranks
    assert first.counters_before == {"pcie/replay": 0, "net/eth0/rx_bytes": 1}
    assert first.counters_after == {"net/eth0/rx_bytes": 2}
    assert second.counters_before == {"pcie/replay": 5} and second.counters_after == {"pcie/replay": 6}


def test_what_the_child_prints() -> None:
    assert parse(b'{"GPU-1": {"pcie/replay": 3, "x": "y", "z": true}, "GPU-2": 1}') == {
        "GPU-1": {"pcie/replay": 3}
    }
    for rubbish in (b"", b"[]", b"{", b"null", b"\xff"):
        assert parse(rubbish) == {}
