"""The names and values of NCCL's and torch's variables hang together."""

from __future__ import annotations

import re

from fsdp_doctor.tables import debug_variables, network
from fsdp_doctor.tables import nccl_variables as nccl
from fsdp_doctor.tables import torch_variables as torch

NAME = re.compile(r"NCCL(_[A-Z0-9]+)+\Z")


def test_names_are_names() -> None:
    assert [n for n in nccl.KNOWN if not NAME.match(n)] == []
    assert [n for n in torch.TORCH_NCCL if not re.match(r"TORCH_NCCL(_[A-Z0-9]+)+\Z", n)] == []


def test_documented_and_undocumented_are_apart() -> None:
    assert frozenset(nccl.DOCUMENTED) & nccl.UNDOCUMENTED == set()


def test_what_is_never_read_is_not_known() -> None:
    assert frozenset(nccl.NEVER_READ) & nccl.KNOWN == frozenset()
    assert frozenset(torch.NEVER_READ) & torch.IMPORTANT == frozenset()


def test_versions_are_not_newer_than_the_table() -> None:
    for name, entry in nccl.DOCUMENTED.items():
        for version in (entry.since, entry.removed, entry.deprecated):
            assert version is None or version[:2] <= nccl.NEWEST, name


def test_every_judged_name_is_known() -> None:
    judged = nccl.TOGGLES | frozenset(nccl.NUMBERS) | nccl.TUNING
    assert judged - nccl.KNOWN == frozenset()
    assert frozenset() == torch.BOOLEANS - torch.TORCH_NCCL
    assert frozenset() == torch.INTEGERS - torch.TORCH_NCCL - torch.TORCH_FR


def test_replacements_exist() -> None:
    for name, entry in nccl.DOCUMENTED.items():
        assert entry.instead is None or entry.instead in nccl.KNOWN, name
    assert frozenset(torch.RENAMED.values()) <= torch.TORCH_NCCL


def test_renamed_names_are_not_read_by_nccl() -> None:
    assert frozenset(torch.RENAMED) & nccl.KNOWN == frozenset()
    assert frozenset() == torch.SWAPPED_ONLY_TORCH & nccl.KNOWN


def test_ranges_are_ranges() -> None:
    assert [n for n, (low, high) in nccl.NUMBERS.items() if high is not None and high < low] == []


def test_variables_of_the_2_30_guide_are_known() -> None:
    guide = """NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_CROSS_NIC NCCL_NVLS_ENABLE NCCL_MNNVL_ENABLE NCCL_RAS_ENABLE
    NCCL_CTA_POLICY NCCL_NETDEVS_POLICY NCCL_MULTI_RANK_GPU_ENABLE NCCL_CHECK_MODE NCCL_IB_OOO_RQ
    NCCL_GRAPH_STREAM_ORDERING NCCL_NET_MERGE_POLICY NCCL_SYM_GIN_KERNELS_ENABLE NCCL_SOCKET_POLL_TIMEOUT_MSEC"""
    assert frozenset(guide.split()) - nccl.KNOWN == frozenset()


def test_every_table_is_dated() -> None:
    for table in (nccl, torch, debug_variables, network):
        assert re.match(r"20\d\d-\d\d-\d\d\Z", table.CHECKED_ON)


def test_tool_classes_are_tools() -> None:
    tools = frozenset(debug_variables.TOOLS)
    assert tools >= debug_variables.HARMLESS_TOOLS
    assert tools >= debug_variables.STOPS_THE_JOB
    assert not debug_variables.HARMLESS_TOOLS & debug_variables.STOPS_THE_JOB
