from __future__ import annotations

import pytest

from fsdp_doctor.tables.gpu_architectures import Support, is_blackwell, support, wheel_archs


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        ("sm_80 sm_90", (9, 0), Support.SASS),
        ("sm_80 sm_86", (8, 9), Support.SASS),
        ("sm_89", (8, 6), Support.NONE),
        ("sm_90a", (9, 0), Support.SASS),
        ("sm_100a", (10, 3), Support.NONE),
        ("sm_100f", (10, 3), Support.SASS),
        ("sm_100", (10, 3), Support.SASS),
        ("sm_120", (12, 1), Support.SASS),
        ("sm_100", (12, 0), Support.NONE),
        ("sm_90 compute_90", (12, 0), Support.PTX),
        ("sm_120 compute_120", (9, 0), Support.NONE),
        ("compute_90a", (10, 0), Support.NONE),
        ("gfx942 nonsense", (9, 0), Support.NONE),
        ("", (9, 0), Support.NONE),
    ],
)
def test_support(archs: str, capability: tuple[int, int], expected: Support) -> None:
    assert support(archs.split(), capability) is expected


def test_wheels() -> None:
    assert "sm_70" not in wheel_archs((2, 7), "cu128", "x86_64")
    assert "sm_70" in wheel_archs((2, 10), "cu128", "x86_64")
    assert "sm_70" not in wheel_archs((2, 11), "cu128", "x86_64")
    assert "sm_50" in wheel_archs((2, 14), "cu126", "x86_64")
    assert wheel_archs((2, 14), "cu126", "aarch64") == ("sm_80", "sm_90")
    assert wheel_archs((2, 14), "cu999", "x86_64") == ()


def test_blackwell() -> None:
    assert is_blackwell((10, 0)) and is_blackwell((12, 1)) and not is_blackwell((9, 0))
    assert is_blackwell(None, 0x2B85) and is_blackwell(None, 0x2941) and is_blackwell(None, 0x3182)
    assert not is_blackwell(None, 0x2330) and not is_blackwell(None, 0x2684) and not is_blackwell()
