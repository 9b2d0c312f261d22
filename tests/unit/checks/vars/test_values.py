"""How values and names of variables are read."""

from __future__ import annotations

import pytest

from fsdp_doctor.checks.vars._allocator import pairs, wrong
from fsdp_doctor.checks.vars._spelling import nearest, slips
from fsdp_doctor.checks.vars._values import leading_number
from fsdp_doctor.tables.nccl_variables import KNOWN
from fsdp_doctor.tables.torch_variables import ALLOCATOR


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        (" 22abc", 22),
        ("0x10", 16),
        ("010", 8),
        ("-1", -1),
        ("true", None),
        ("", None),
        ('"1"', None),
        ("09", 0),
    ],
)
def test_leading_number(text: str, number: int | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "ab", 1),
        ("abc", "xbc", 1),
        ("abcd", "dcba", 3),
        ("", "ab", 2),
    ],
)
def test_slips(one: str, other: str, count: int) -> None:
    assert slips(one, other, 5) == count


def test_slips_stop_at_the_limit() -> None:
    assert slips("a" * 60, "b" * 60, 2) == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_INFAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IFNAME_SOCKET", "NCCL_SOCKET_IFNAME"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_DEBUGG", "NCCL_DEBUG"),
        ("NCCL_BUFSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_HOLOGRAM", None),
        ("NCCL_" + "X" * 500, None),
    ],
)
def test_nearest(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN, "NCCL_") == meant


def test_allocator_pairs() -> None:
    text = " expandable_segments:True, roundup_power2_divisions:[256:1,>:4] ,max_split_size_mb=8,"
    assert list(pairs(text)) == [
        ("expandable_segments", "True"),
        ("roundup_power2_divisions", "[256:1,>:4]"),
        ("max_split_size_mb=8", None),
    ]


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("expandable_segments", "True", True),
        ("expandable_segments", "1", False),
        ("max_split_size_mb", "20", True),
        ("max_split_size_mb", "19", False),
        ("max_split_size_mb", "٣٢", False),
        ("garbage_collection_threshold", ".6", True),
        ("garbage_collection_threshold", "0", False),
        ("garbage_collection_threshold", ".", False),
        ("roundup_power2_divisions", "4", True),
        ("roundup_power2_divisions", "3", False),
        ("roundup_power2_divisions", "[256:1,>:8]", True),
        ("roundup_power2_divisions", "[256:1", False),
        ("backend", "cudaMallocAsync", True),
        ("backend", "jemalloc", False),
    ],
)
def test_allocator_values(key: str, value: str, right: bool) -> None:
    assert (wrong(ALLOCATOR[key], value) is None) is right
