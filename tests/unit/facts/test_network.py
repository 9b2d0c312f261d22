from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.network import hosts, network, socket_address
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.network import Interface, Network
from tests.unit.facts.literal import known, source


def network_of(machine: machines.Machine) -> Network:
    value = known(network(source_of(machine)))
    assert isinstance(value, Network)
    return value


def test_a_healthy_node() -> None:
    found = network_of(machines.h100())
    assert found.hostname == "h100-node-a"
    assert [i.name for i in found.interfaces] == [
        "lo",
        "eno1",
        *(f"ibp{n}s0" for n in (24, 60, 77, 94, 154, 188, 204, 220)),
    ]
    assert [i.ifindex for i in found.interfaces] == list(range(1, 11))
    assert found.interfaces[1] == Interface(
        "eno1",
        ipv4=("10.20.0.11/24",),
        ifindex=2,
        state="up",
        carrier=True,
        carrier_changes=2,
        mtu=9000,
        speed=25000,
        type=1,
        flags=0x1003,
        virtual=False,
        pci="0000:02:00.0",
        driver="mlx5_core",
        statistics={"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0},
    )
    assert found.interfaces[2].type == 32
    assert found.resolve["h100-node-a"] == ("10.20.0.11",)
    assert found.hosts == (("127.0.0.1", "localhost"), ("10.20.0.11", "h100-node-a"))
    assert found.listening is None


@pytest.mark.parametrize(
    ("machine", "name", "address", "speed", "virtual", "pci"),
    [
        (machines.a100(), "eno1", "10.21.0.11/24", 25000, False, "0000:02:00.0"),
        (machines.l40s(), "eno1", "10.20.0.11/24", 25000, False, "0000:02:00.0"),
        (machines.geforce(), "enp98s0", "192.168.1.40/24", 1000, False, "0000:62:00.0"),
        (machines.h200_vm(), "eth0", "192.0.2.2/24", 10000, False, "0000:00:03.0"),
        (machines.laptop(), "wlp0s20f3", "192.168.178.31/24", None, False, "0000:00:14.3"),
        (machines.h100_container(), "eth0", "172.17.0.2/16", None, True, None),
        (machines.job_node("n", "10.0.0.1/24"), "eth0", "10.0.0.1/24", 40000, False, "0000:00:03.0"),
    ],
    ids=["a100", "l40s", "geforce", "h200_vm", "laptop", "container", "job_node"],
)
def test_the_other_machines(
    machine: machines.Machine, name: str, address: str, speed: int | None, virtual: bool, pci: str | None
) -> None:
    interface = next(i for i in network_of(machine).interfaces if i.name == name)
    assert (interface.ipv4, interface.speed, interface.virtual, interface.pci) == (
        (address,),
        speed,
        virtual,
        pci,
    )


def test_an_interface_that_is_down() -> None:
    docker = next(i for i in network_of(machines.geforce()).interfaces if i.name == "docker0")
    assert (docker.state, docker.carrier, docker.virtual) == ("down", False, True)


def test_bonds_routes_and_sockets() -> None:
    base = "sys/devices/virtual/net/bond0"
    found = known(
        network(
            source(
                {
                    "sys/class/net/bonding_masters": "bond0",
                    f"{base}/ifindex": "7",
                    f"{base}/speed": "-1",
                    f"{base}/bonding/slaves": "eth1 eth0",
                    "proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
                    "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\n"
                    "bond0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\n"
                    "down0\t00000000\t0102A8C0\t0002\t0\t0\t0\t00000000\n"
                    "bond0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
                    "proc/net/tcp": "  sl  local_address rem_address   st\n"
                    "   0: 0100007F:1F90 00000000:0000 0A 0 0\n"
                    "   1: 0B00140A:7337 0C00140A:0016 01 0 0\n",
                    "proc/net/tcp6": "  sl  local_address rem_address   st\n"
                    "   0: 00000000000000000000000000000000:0016 0:0 0A 0 0\n",
                },
                {"sys/class/net/bond0": "../../devices/virtual/net/bond0"},
                net={
                    "interfaces": {"gone0": {"ipv4": ["10.0.0.9/8", 3], "ipv6": None}},
                    "resolve": {"x": [], "y": None},
                },
            )
        )
    )
    assert isinstance(found, Network)
    assert found.hostname == "literal"
    bond, gone = found.interfaces
    assert (bond.bond_members, bond.speed, bond.virtual) == (("eth1", "eth0"), None, True)
    assert gone == Interface("gone0", ipv4=("10.0.0.9/8",))
    assert found.default_interface == "bond0"
    assert found.listening == (("::", 22), ("127.0.0.1", 8080))
    assert found.resolve == {"x": (), "y": ()}


def test_the_default_route_of_ipv6_alone() -> None:
    route = f"{'0' * 32} 00 {'0' * 32} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0"
    lo = f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200 lo"
    found = known(network(source({"proc/net/ipv6_route": f"{lo}\n{route}\n"}, net={})))
    assert isinstance(found, Network)
    assert found.default_interface == "eth0"


def test_hosts() -> None:
    assert hosts("# c\n127.0.1.1  a a.example # local\n\n::1\tb\nbroken\n") == (
        ("127.0.1.1", "a"),
        ("127.0.1.1", "a.example"),
        ("::1", "b"),
    )


@pytest.mark.parametrize("word", ["", "zz:1", "0100007F", "0100007F:FFFFF", "01007F:16", "0100007F:-1"])
def test_no_socket_address(word: str) -> None:
    assert socket_address(word) is None


def test_nothing_to_read() -> None:
    assert isinstance(network(source()), Unknown)
