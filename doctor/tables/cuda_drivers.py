"""Which driver each CUDA toolkit needs, which driver branches are alive, and which GPUs take cuda-compat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum

from fsdp_doctor.tables.versions import Version, at_least, parse

CHECKED_ON = "2026-08-31"

# CUDA release notes (13.2 Update 2), table 2: oldest Linux driver of minor-version compatibility.
FLOORS: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major -> oldest driver that runs its programs."""

# CUDA release notes, table 3: the driver that ships with the first release of each toolkit. 13.3 and
# 13.4 are read from secondary sources. There never was a toolkit 12.7.
TOOLKIT_DRIVERS: Mapping[Version, str] = {
    (11, 7): "515.43.04",
    (11, 8): "520.61.05",
    (12, 0): "525.60.13",
    (12, 1): "530.30.02",
    (12, 2): "535.54.03",
    (12, 3): "545.23.06",
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595.45.04",
    (13, 3): "610.43.02",
    (13, 4): "615",
}
"""CUDA (major, minor) -> the driver released with it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A data-centre driver branch: its kind and the last day of its support."""

    kind: str
    end: date | None


# "Supported drivers and CUDA toolkit versions" of the data-centre driver documentation (drivers/615).
BRANCHES: Mapping[int, Branch] = {
    450: Branch("long-term support", date(2023, 7, 31)),
    470: Branch("long-term support", date(2024, 7, 31)),
    525: Branch("production", date(2023, 12, 31)),
    535: Branch("long-term support", date(2026, 6, 30)),
    550: Branch("production", date(2025, 6, 30)),
    570: Branch("production", date(2026, 2, 28)),
    580: Branch("long-term support", date(2028, 6, 30)),
    595: Branch("production", date(2027, 3, 31)),
    610: Branch("new-feature", date(2026, 8, 31)),
    615: Branch("new", None),
}
NEWEST_BRANCH = 615
UNLISTED_END = date(2026, 8, 31)
"""Older branches that the document does not list had ended when it was read."""
RECOMMENDED_BRANCH = 580
COMPAT_BASES: frozenset[int] = frozenset({450, 470, 525, 535, 550, 570, 580, 595})
"""Branches that forward compatibility (cuda-compat) may sit on: long-term support and production."""

GEFORCE_BRANDS: frozenset[int] = frozenset({5, 6, 15, 16})
"""NVML_BRAND_*: GeForce, Titan, GeForce RTX, Titan RTX."""


class Fit(str, Enum):
    """How a driver stands to a CUDA toolkit."""

    NATIVE = "native"
    MINOR = "minor-version compatibility"
    TOO_OLD = "too old"
    UNKNOWN = "unknown"


def fit(driver: Version, cuda: Version) -> Fit:
    """Whether a driver runs programs of a toolkit (major, minor) without cuda-compat.

    `UNKNOWN` is a major version that this table does not hold.
    """
    floor = parse(FLOORS.get(cuda[0])) if cuda else None
    if floor is None:
        return Fit.UNKNOWN
    if not at_least(driver, floor):
        return Fit.TOO_OLD
    own = parse(toolkit_driver(cuda))
    if own is not None:
        return Fit.NATIVE if at_least(driver, own) else Fit.MINOR
    newest = max(TOOLKIT_DRIVERS)
    return Fit.UNKNOWN if cuda > newest else Fit.NATIVE


def toolkit_driver(cuda: Version) -> str | None:
    """The driver that a toolkit was released with."""
    return TOOLKIT_DRIVERS.get(cuda[:2])


def newest_cuda(driver: Version) -> Version | None:
    """The newest toolkit whose own driver is not above `driver`; None below all of them."""
    known = [c for c, d in TOOLKIT_DRIVERS.items() if at_least(driver, parse(d) or ())]
    return max(known, default=None)


def end_of_support(branch: int) -> date | None:
    """The last day of support; None where the branch is alive or newer than this table."""
    if branch in BRANCHES:
        return BRANCHES[branch].end
    return UNLISTED_END if branch < NEWEST_BRANCH else None


def is_consumer(name: str | None, brand: int | None) -> bool:
    """Whether a GPU is a GeForce or Titan, on which cuda-compat ends in CUDA error 804."""
    if brand in GEFORCE_BRANDS:
        return True
    text = (name or "").lower()
    return "geforce" in text or "titan" in text
