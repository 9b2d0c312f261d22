"""Buffers of reductions as an H200 allocated them (132 multiprocessors)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fsdp_doctor.memory.child.reductions import buffers  # noqa: E402

MIB = 1 << 20


@pytest.mark.parametrize(
    ("shape", "dims", "measured"),
    [
        ((8, 1024, 1024), (0, 1), (64 * MIB, 32)),
        ((8, 1024, 1024), (1,), (64 * MIB, 256)),
        ((8, 1024, 1024), (2,), ()),
        ((8, 1024, 1024), None, (2112, 4)),
        ((8192, 4096), (0,), (132 * MIB, 128)),
        ((4096, 16384), (0,), (136 * MIB, 512)),
        ((64 * 197, 3072), (0,), (132 * MIB, 96)),
        ((64 * 197, 768), (0,), (77463552, 24)),
        ((320, 4096), (0,), ()),
        ((32, 1000), (0,), ()),
        ((16, 128, 256, 256), (0, 2, 3), (4096, 512)),
        ((16, 256, 128, 128), (0, 2, 3), (3072, 1024)),
        ((16, 512, 64, 64), (0, 2, 3), ()),
        ((2, 32, 64, 64, 64), (0, 2, 3, 4), (2176, 128)),
        ((2, 32, 64, 64, 64), (2, 3, 4), (2304, 256)),
        ((1000,), None, ()),
    ],
)
def test_as_measured(shape: tuple[int, ...], dims: tuple[int, ...] | None, measured: tuple[int, ...]) -> None:
    assert buffers(torch.empty(shape, device="meta", dtype=torch.bfloat16), dims, 132) == measured


def test_channels_last() -> None:
    x = torch.empty(16, 256, 32, 32, device="meta", dtype=torch.bfloat16)
    assert buffers(x.to(memory_format=torch.channels_last), (0, 2, 3), 132) == (32 * MIB, 8)


def test_of_nothing() -> None:
    assert buffers(torch.empty((), device="meta"), None, 132) == ()
    assert buffers(torch.empty(0, 4, device="meta"), (0,), 132) == ()
