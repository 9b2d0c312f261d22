"""NCCL's lists and its choice of interfaces."""

from __future__ import annotations

import pytest

from fsdp_doctor.engine.interfaces import predict, selector
from fsdp_doctor.subjects.network import Interface


def up(name: str, index: int, v4: str | None = "10.0.0.1/24", **more: object) -> Interface:
    values: dict[str, object] = {
        "ipv4": (v4,) if v4 else (),
        "ifindex": index,
        "state": "up",
        "carrier": True,
    }
    return Interface(name, **(values | more))  # type: ignore[arg-type]


LO = up("lo", 1, "127.0.0.1/8", state="unknown")
ETH0, ETH1, IB0 = up("eth0", 2), up("eth1", 3, "10.1.0.1/24"), up("ib0", 9, "10.2.0.1/24")
DOCKER, VIRBR = up("docker0", 4, "172.17.0.1/16"), up("virbr0", 5, "192.168.122.1/24")


@pytest.mark.parametrize(
    ("text", "name", "port", "takes"),
    [
        ("mlx5", "mlx5_3", 1, True),
        ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("=mlx5_1", "mlx5_1", 1, True),
        ("mlx5_1:1", "mlx5_1", 2, False),
        ("mlx5_1:2:0:1", "mlx5_1", 2, True),
        ("^mlx5_1", "mlx5_1", 1, False),
        ("^mlx5_1", "mlx5_2", 1, True),
        ("^=mlx5_1", "mlx5_10", 1, True),
        ("eth1, eth0", "eth0", None, False),
        (",,", "eth0", None, True),
    ],
)
def test_list(text: str, name: str, port: int | None, takes: bool) -> None:
    assert selector(text).takes(name, port) is takes


def chosen(*interfaces: Interface, **more: str) -> list[str]:
    return [i.name for i in predict(interfaces, **more).interfaces]


def test_infiniband_names_win() -> None:
    assert chosen(LO, ETH0, IB0) == ["ib0"]


def test_ordinary_interfaces_in_kernel_order() -> None:
    assert chosen(ETH1, LO, DOCKER, VIRBR, ETH0) == ["eth0", "eth1"]


def test_docker_before_loopback_and_libvirt() -> None:
    assert chosen(LO, VIRBR, DOCKER) == ["docker0"]
    assert chosen(LO, VIRBR) == ["lo"]
    assert chosen(VIRBR) == ["virbr0"]


def test_subnet_of_comm_id() -> None:
    assert chosen(LO, ETH0, ETH1, comm_id="10.1.0.77:5000") == ["eth1"]
    assert chosen(LO, ETH0, ETH1, comm_id="rubbish") == ["eth0", "eth1"]


def test_list_finds_or_finds_nothing() -> None:
    assert chosen(LO, ETH0, ETH1, ifname="eth1") == ["eth1"]
    assert chosen(LO, ETH0, ETH1, ifname="bond") == []
    assert chosen(LO, ETH0, ETH1, ifname="e") == ["eth0", "eth1"]
    assert chosen(LO, ETH0, DOCKER, ifname="^eth,lo") == ["docker0"]


def test_down_or_bare_interfaces_are_passed_over() -> None:
    down = up("eth0", 2, state="down", carrier=False)
    assert chosen(LO, down, up("eth2", 3, None)) == ["lo"]


def test_interfaces_with_ipv6_alone_come_last() -> None:
    six = up("eth0", 2, None, ipv6=("fd00::1/64",))
    assert chosen(six, ETH1) == ["eth1", "eth0"]
    assert chosen(six, ETH1, family="AF_INET6") == ["eth0"]
    assert chosen(up("lo", 1, None, ipv6=("::1/128",))) == []
