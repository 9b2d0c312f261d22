from __future__ import annotations

import pytest

from fsdp_doctor.tables.torch_companions import tagged_cuda, tagged_torch, wants_torch
from fsdp_doctor.tables.torch_releases import (
    RELEASES,
    cuda_of_tag,
    first_release_for,
    fitting_tag,
    release_of,
)

H100, A100, V100, P100, RTX5090 = (9, 0), (8, 0), (7, 0), (6, 0), (12, 0)


@pytest.mark.parametrize(
    ("tag", "cuda"),
    [
        ("cu130", (13, 0)),
        ("cu118", (11, 8)),
        ("cpu", None),
        ("cu", None),
        ("cu1", None),
        ("cux", None),
        ("rocm6.4", None),
        (None, None),
        ("cu²30", None),
    ],
)
def test_cuda_of_tag(tag: str | None, cuda: tuple[int, int] | None) -> None:
    assert cuda_of_tag(tag) == cuda


def test_releases() -> None:
    release = release_of("2.13.0+cu126")
    assert release is not None and release.default == "cu130" and release.indexes["cu126"] == "2.29.3"
    assert release_of("2.99.0") is None and release_of("what") is None and release_of(None) is None
    assert all(cuda_of_tag(t) is not None for r in RELEASES.values() for t in r.tags)
    assert all(set(r.tags) == set(r.indexes) for r in RELEASES.values())


@pytest.mark.parametrize(
    ("release", "driver", "gpus", "machine", "tag"),
    [
        ("2.13.0", (580, 95, 5), [H100], "x86_64", "cu130"),
        ("2.13.0", (535, 183, 6), [H100], "x86_64", "cu126"),
        ("2.13.0", (580, 95, 5), [V100], "x86_64", "cu126"),
        ("2.13.0", (535, 183, 6), [RTX5090], "x86_64", None),
        ("2.11.0", (570, 124, 6), [RTX5090], "x86_64", "cu128"),
        ("2.10.0", (570, 124, 6), [A100, RTX5090], "x86_64", "cu128"),
        ("2.13.0", (450, 80, 2), [A100], "x86_64", None),
        ("2.6.0", (450, 80, 2), [A100], "x86_64", "cu118"),
        ("2.13.0", None, [], "x86_64", "cu130"),
        ("2.13.0", (535, 183, 6), [A100], "aarch64", "cu126"),
        ("2.99.0", (580, 95, 5), [H100], "x86_64", None),
    ],
)
def test_fitting_tag(
    release: str,
    driver: tuple[int, ...] | None,
    gpus: list[tuple[int, int]],
    machine: str,
    tag: str | None,
) -> None:
    assert fitting_tag(release, driver, gpus, machine) == tag


def test_first_release() -> None:
    assert first_release_for((570, 124, 6), [RTX5090], "x86_64") == "2.11 from cu128"
    assert first_release_for((580, 95, 5), [P100], "x86_64") == "2.14 from cu126"
    assert first_release_for((400,), [H100], "x86_64") is None


def test_companions() -> None:
    assert wants_torch("torchvision", "0.28.0+cu130") == (2, 13)
    assert wants_torch("torchaudio", "2.6.0") == (2, 6)
    assert wants_torch("torchaudio", "2.11.1") is None
    assert wants_torch("numpy", "2.3.3") is None
    assert tagged_torch("2.7.4.post1+cu12torch2.6cxx11abiFALSE") == (2, 6)
    assert tagged_torch("2.7.4") is None
    assert tagged_cuda("0.28.0+cu130") == "cu130" and tagged_cuda("0.1+abc") is None
