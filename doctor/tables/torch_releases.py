"""PyTorch releases: what their Linux wheels are built for, which indexes hold them, what they need below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fsdp_doctor.tables.cuda_drivers import Fit, fit
from fsdp_doctor.tables.gpu_architectures import Capability, Support, support, wheel_archs
from fsdp_doctor.tables.versions import Version, parse

CHECKED_ON = "2026-12-02"
INDEX = "https://download.pytorch.org/whl/"


@dataclass(frozen=True, slots=True)
class Release:
    """One minor release. `indexes` maps a CUDA tag to the NCCL of its wheels, the default tag first.

    An empty NCCL was not read.
    """

    version: Version
    indexes: Mapping[str, str]
    python: Version
    glibc: Version
    extra_indexes: tuple[str, ...] = field(default=())
    """Experimental tags; named only where no other fits."""

    @property
    def default(self) -> str:
        """The CUDA tag of the wheel on PyPI."""
        return next(iter(self.indexes))

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag, preferred ones first: default, then newest, then experimental."""
        rest = sorted((t for t in self.indexes if t not in (self.default, *self.extra_indexes)), reverse=True)
        return (self.default, *rest, *self.extra_indexes)


def _release(
    version: Version, python: Version, glibc: Version, extra: tuple[str, ...] = (), **indexes: str
) -> Release:
    return Release(version, indexes, python, glibc, extra)


# Wheel metadata of the cp311 Linux x86_64 wheels on PyPI (pip's dry-run reports) and, for the other
# indexes, RELEASE.md of pytorch. manylinux1 tags of 2.0-2.6 understate glibc: RELEASE.md says 2.17.
_OLD, _NEW = (2, 17), (2, 28)
RELEASES: Mapping[Version, Release] = {
    r.version: r
    for r in (
        _release((2, 0), (3, 8), _OLD, cu117="2.14.3", cu118=""),
        _release((2, 1), (3, 8), _OLD, cu121="2.18.1", cu118=""),
        _release((2, 2), (3, 8), _OLD, cu121="2.19.3", cu118=""),
        _release((2, 3), (3, 8), _OLD, cu121="2.20.5", cu118=""),
        _release((2, 4), (3, 8), _OLD, cu121="2.20.5", cu118="", cu124=""),
        _release((2, 5), (3, 8), _OLD, cu124="2.21.5", cu118="", cu121=""),
        _release((2, 6), (3, 9), _OLD, ("cu126",), cu124="2.21.5", cu118="", cu126=""),
        _release((2, 7), (3, 9), _NEW, ("cu128",), cu126="2.26.2", cu118="", cu128=""),
        _release((2, 8), (3, 9), _NEW, ("cu129",), cu128="2.27.3", cu126="", cu129=""),
        _release((2, 9), (3, 10), _NEW, ("cu130",), cu128="2.27.5", cu126="", cu130=""),
        _release((2, 10), (3, 10), _NEW, ("cu130",), cu128="2.27.5", cu126="2.27.5", cu130="2.28.9"),
        _release((2, 11), (3, 10), _NEW, cu130="2.28.9", cu126="2.28.9", cu128="2.28.9"),
        _release((2, 12), (3, 10), _NEW, ("cu132",), cu130="2.29.7", cu126="2.29.3", cu132="2.29.7"),
        _release((2, 13), (3, 10), _NEW, ("cu132",), cu130="2.29.7", cu126="2.29.3", cu132="2.29.7"),
        _release((2, 14), (3, 10), _NEW, cu130="2.30.7", cu126="2.29.3", cu132="2.30.7"),
    )
}
NEWEST: Version = max(RELEASES)
OLDEST: Version = min(RELEASES)

DEPRECATED_PYNVML = "pynvml"
"""The distribution that torch warns of; the module of the same name belongs to nvidia-ml-py."""


def release_of(version: str | None) -> Release | None:
    """The release of a version text; None where it is not in the table."""
    numbers = parse(version)
    return RELEASES.get(numbers[:2]) if numbers and len(numbers) >= 2 else None


def cuda_of_tag(tag: str | None) -> Version | None:
    """(13, 0) of `cu130`; None for cpu, rocm6.4, xpu and what is no tag."""
    digits = (tag or "").removeprefix("cu")
    if not tag or not tag.startswith("cu") or not digits.isascii() or not digits.isdigit():
        return None
    return (int(digits[:-1]), int(digits[-1])) if 2 < len(digits) < 6 else None


def fitting_tag(
    version: str | None, driver: Version | None, capabilities: Iterable[Capability], machine: str
) -> str | None:
    """The index whose wheel of this release runs on a driver and has code for every GPU; None if none has.

    An unknown driver or GPU restricts nothing.
    """
    release = release_of(version)
    if release is None:
        return None
    gpus = tuple(capabilities)
    for tag in release.tags:
        cuda = cuda_of_tag(tag)
        if cuda is None or (driver is not None and fit(driver, cuda) is Fit.TOO_OLD):
            continue
        archs = wheel_archs(release.version, tag, machine)
        if all(support(archs, c) is Support.SASS for c in gpus):
            return tag
    return None


def first_release_for(driver: Version | None, capabilities: Iterable[Capability], machine: str) -> str | None:
    """The newest release that has a fitting wheel, as "2.13 from cu126"; None if no release has."""
    gpus = tuple(capabilities)
    for version in sorted(RELEASES, reverse=True):
        text = f"{version[0]}.{version[1]}"
        tag = fitting_tag(text, driver, gpus, machine)
        if tag is not None:
            return f"{text} from {tag}"
    return None
