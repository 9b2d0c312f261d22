from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.pci import pci
from fsdp_doctor.facts.pci_config import acs
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.pci import Pci, PciDevice
from tests.unit.facts.literal import known, source


def pci_of(machine: machines.Machine) -> Pci:
    value = known(pci(source_of(machine)))
    assert isinstance(value, Pci)
    return value


def test_a_healthy_node() -> None:
    found = pci_of(machines.h100())
    assert [d.bdf for d in found.gpus] == [
        f"0000:{b}:00.0" for b in ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]
    ]
    assert [d.bdf for d in found.nvswitches] == [f"0000:0{i}:00.0" for i in (3, 4, 5, 6)]
    assert [d.bdf for d in found.devices] == sorted(d.bdf for d in found.devices)
    assert found.get("0000:1b:00.0") == PciDevice(
        "0000:1b:00.0",
        vendor=0x10DE,
        device=0x2330,
        pci_class=0x030200,
        driver="nvidia",
        numa_node=0,
        width=16,
        width_max=16,
        speed=32.0,
        speed_max=32.0,
        parents=("0000:17:02.0", "0000:16:00.0", "0000:15:01.0"),
    )
    bridge = found.get("0000:17:02.0")
    assert bridge is not None
    assert (bridge.pci_class, bridge.has_acs, bridge.acs_control) == (0x060400, None, None)
    assert bridge.parents == ("0000:16:00.0", "0000:15:01.0")
    assert found.get("0000:18:00.0") is not None


@pytest.mark.parametrize(
    ("machine", "gpus", "device", "switches"),
    [
        (machines.a100(), 8, 0x20B2, 6),
        (machines.l40s(), 8, 0x26B9, 0),
        (machines.geforce(), 4, 0x2684, 0),
        (machines.h200_vm(), 1, 0x2335, 0),
        (machines.laptop(), 0, 0, 0),
        (machines.h100_container(), 8, 0x2330, 4),
        (machines.job_node("n", "10.0.0.1/24"), 2, 0x2330, 0),
    ],
    ids=["a100", "l40s", "geforce", "h200_vm", "laptop", "container", "job_node"],
)
def test_the_other_machines(machine: machines.Machine, gpus: int, device: int, switches: int) -> None:
    found = pci_of(machine)
    assert [d.device for d in found.gpus] == [device] * gpus
    assert len(found.nvswitches) == switches


@pytest.mark.parametrize("control", [0, 0x1D, 0x5F])
def test_access_control_of_a_bridge_that_root_can_read(control: int) -> None:
    found = pci_of(machines.l40s(config=machines.config_space(control)))
    bridges = [d for d in found.devices if d.has_acs is not None]
    assert {d.acs_control for d in bridges} == {control}
    assert "0000:17:02.0" in [d.bdf for d in bridges]


def chain(*capabilities: tuple[int, int], size: int = 4096) -> bytes:
    """A configuration space with extended capabilities (id, offset) in the order of their links."""
    raw = bytearray(machines.config_space(None)[:256].ljust(size, b"\0"))
    for (kind, offset), following in pairwise([*capabilities, (0, 0)]):
        raw[offset : offset + 4] = struct.pack("<I", kind | 1 << 16 | following[1] << 20)
    return bytes(raw)


class TestAccessControl:
    def test_only_the_header_may_be_read(self) -> None:
        assert acs(machines.config_space(0x1D)[:64]) == (None, None)

    def test_no_capability(self) -> None:
        assert acs(machines.config_space(None)) == (False, None)

    def test_behind_others(self) -> None:
        raw = bytearray(chain((1, 0x100), (0x19, 0x300), (0xD, 0x200)))
        raw[0x206:0x208] = b"\x1d\0"
        assert acs(bytes(raw)) == (True, 0x1D)

    def test_a_loop_ends(self) -> None:
        assert acs(chain((1, 0x100), (2, 0x200), (3, 0x100))) == (False, None)

    def test_a_cut_space_says_nothing(self) -> None:
        assert acs(chain((1, 0x100), (0xD, 0x800), size=4096)[:512]) == (None, None)
        assert acs(chain((0xD, 0x100))[:0x104]) == (True, None)

    def test_a_device_off_the_bus(self) -> None:
        assert acs(b"\xff" * 4096) == (None, None)

    def test_an_express_device_whose_extended_part_is_hidden(self) -> None:
        assert acs(machines.config_space(None)[:256]) == (None, None)

    def test_a_conventional_device(self) -> None:
        assert acs(bytes(256)) == (False, None)


def test_error_counters() -> None:
    base = "sys/devices/pci0000:00/0000:00:01.0"
    found = known(
        pci(
            source(
                {
                    f"{base}/vendor": "0x10de",
                    f"{base}/device": "0x2330",
                    f"{base}/class": "0x030200",
                    f"{base}/aer_dev_fatal": "Undefined 0\nDLP 2\nSDES 1\nTOTAL_ERR_FATAL 3\n",
                    f"{base}/aer_dev_nonfatal": "UnsupReq 4\nACSViol 1",
                    f"{base}/aer_dev_correctable": "RxErr many",
                    f"{base}/current_link_speed": "Unknown",
                    f"{base}/max_link_speed": "8 GT/s",
                    f"{base}/current_link_width": "0",
                    f"{base}/max_link_width": "255",
                },
                {"sys/bus/pci/devices/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0"},
            )
        )
    )
    assert isinstance(found, Pci)
    device = found.devices[0]
    assert (device.aer_fatal, device.aer_nonfatal, device.aer_correctable) == (3, 5, None)
    assert (device.speed, device.speed_max, device.width, device.width_max) == (None, 8.0, None, None)


def test_none_and_unreadable() -> None:
    assert pci(source({"sys/bus/pci/slots/x": ""})) == Unknown("the machine shows no PCI device", absent=True)
    hidden = pci(source())
    assert isinstance(hidden, Unknown)
    assert not hidden.absent
