"""What is true of a GPU product by its name: data-centre or not, and how many NVLinks its board wires."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECKED_ON = "2026-11"
SOURCE = "NVIDIA data sheets and `nvidia-smi nvlink -s` of the products"


@dataclass(frozen=True, slots=True)
class Product:
    """`links` is None where links depend on a bridge that may not be there, or on the board."""

    pattern: str
    datacenter: bool = True
    links: int | None = None
    link_mbps: int | None = None
    """MB/s per link and direction, the lowest that a healthy board reports."""
    mesh: bool = False
    """Every GPU of a node reaches every other over NVLink."""


PRODUCTS: tuple[Product, ...] = (
    Product(r"GB[23]00", links=18, link_mbps=50000, mesh=True),
    Product(r"B[23]00", links=18, link_mbps=50000, mesh=True),
    Product(r"GH200"),
    Product(r"H[12]00 NVL|H(100|800) PCIe|H20 NVL|H20-PCIe"),
    Product(r"H800", links=8, link_mbps=26000, mesh=True),
    Product(r"H(20|100|200)\b", links=18, link_mbps=26000, mesh=True),
    Product(r"A100-SXM|A100-SXM4", links=12, link_mbps=25000, mesh=True),
    Product(r"A800-SXM", links=8, link_mbps=25000, mesh=True),
    Product(r"A[18]00|A30\b|A40\b"),
    Product(r"V100-SXM", links=6, link_mbps=25000),
    Product(r"P100-SXM", links=4, link_mbps=19000),
    Product(r"RTX PRO 6000 Blackwell Server|RTX PRO 4500 Blackwell Server"),
    Product(r"GeForce|TITAN|Quadro|RTX|NVS|T[146]00|T1000|DGX Display", datacenter=False),
    Product(r"V100|P100|P40\b|P4\b|T4\b|T40\b|A2\b|A10G?\b|A16\b|L2\b|L4\b|L20\b|L40S?\b|L40G\b|Tesla"),
)
"""First match wins."""


def product(name: str | None) -> Product | None:
    """The product of a name such as "NVIDIA H100 80GB HBM3"; None for one that is not in the table."""
    if name is None:
        return None
    return next((p for p in PRODUCTS if re.search(p.pattern, name)), None)
