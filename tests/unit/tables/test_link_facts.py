"""Link arithmetic and NVML's masks."""

from __future__ import annotations

import pytest

from fsdp_doctor.tables.gpu_products import product
from fsdp_doctor.tables.link_facts import acs_words, pcie_gbps
from fsdp_doctor.tables.nvml_codes import health_faults


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [(2.5, 16, 32.0), (8.0, 8, 63.0), (16.0, 16, 252.1), (32.0, 16, 504.1), (64.0, 16, 1003.5)],
)
def test_pcie_bandwidth_as_the_kernel_prints_it(speed: float, width: int, gbps: float) -> None:
    assert pcie_gbps(speed, width) == pytest.approx(gbps, abs=0.1)


@pytest.mark.parametrize(("speed", "width"), [(None, 16), (16.0, None), (0.0, 16), (16.0, 0), (-1.0, -1)])
def test_pcie_bandwidth_of_no_link(speed: float | None, width: int | None) -> None:
    assert pcie_gbps(speed, width) is None


def test_acs_words() -> None:
    assert acs_words(0x1D) == "SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"
    assert acs_words(0) == "off"


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (0, ()),
        (0x1AA, ()),
        (0x1A9, ("degraded bandwidth",)),
        (0x1A6, ("route recovery in progress",)),
        (0x19A, ("route unhealthy",)),
        (0x16A, ("access timeout recovery in progress",)),
        (0x6AA, ("incorrect configuration: incompatible GPU firmware",)),
        (0x1AA | 2 << 14, ("global fabric manager disconnected",)),
        (0xFFFFFFFF, ()),
    ],
)
def test_fabric_health_mask(mask: int, faults: tuple[str, ...]) -> None:
    assert health_faults(mask) == faults


@pytest.mark.parametrize(
    ("name", "links", "datacenter"),
    [
        ("NVIDIA H100 80GB HBM3", 18, True),
        ("NVIDIA H100 PCIe", None, True),
        ("NVIDIA H100 NVL", None, True),
        ("NVIDIA H200", 18, True),
        ("NVIDIA H200 NVL", None, True),
        ("NVIDIA H800", 8, True),
        ("NVIDIA H20", 18, True),
        ("NVIDIA A100-SXM4-80GB", 12, True),
        ("NVIDIA A100 80GB PCIe", None, True),
        ("NVIDIA A100-PCIE-40GB", None, True),
        ("NVIDIA A800-SXM4-80GB", 8, True),
        ("NVIDIA B200", 18, True),
        ("NVIDIA B300 SXM6 AC", 18, True),
        ("NVIDIA GB200", 18, True),
        ("NVIDIA GB300", 18, True),
        ("NVIDIA GH200 480GB", None, True),
        ("Tesla V100-SXM2-32GB", 6, True),
        ("Tesla V100-PCIE-16GB", None, True),
        ("Tesla P100-SXM2-16GB", 4, True),
        ("Tesla T4", None, True),
        ("NVIDIA A10G", None, True),
        ("NVIDIA A40", None, True),
        ("NVIDIA L4", None, True),
        ("NVIDIA L40S", None, True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, True),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", None, False),
        ("NVIDIA RTX A6000", None, False),
        ("NVIDIA RTX 6000 Ada Generation", None, False),
        ("NVIDIA GeForce RTX 4090", None, False),
        ("NVIDIA TITAN RTX", None, False),
        ("NVIDIA T400 4GB", None, False),
        ("NVIDIA DGX Display", None, False),
    ],
)
def test_products(name: str, links: int | None, datacenter: bool) -> None:
    found = product(name)
    assert found is not None
    assert (found.links, found.datacenter) == (links, datacenter)


@pytest.mark.parametrize("name", [None, "", "NVIDIA X9000", "Graphics Device"])
def test_unknown_products(name: str | None) -> None:
    assert product(name) is None
