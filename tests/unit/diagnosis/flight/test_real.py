"""Dumps that torch wrote: the rank at fault is the one that the fault was planted in."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from fixtures.dumps.beside import NCCL
from fixtures.dumps.real import FAULTS
from fsdp_doctor.diagnosis import flight
from fsdp_doctor.diagnosis.flight.child import dump, plain

DUMPS = Path(__file__).parents[4] / "fixtures" / "dumps"
KINDS = sorted(p.name for p in (DUMPS / "gloo").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_names_the_planted_fault(kind: str) -> None:
    verdict = flight.judge(flight.read([str(DUMPS / "gloo" / kind)]))
    cause = verdict.conclusions[0]
    assert cause.kind in FAULTS[kind][1], cause
    assert cause.ranks == FAULTS[kind][2], cause
    assert verdict.world == tuple(range(FAULTS[kind][0]))
    if kind != "healthy":
        assert cause.site == () or "/job/train.py" in " ".join(f.file for f in cause.site)


def test_json_says_the_same_without_stacks() -> None:
    verdict = flight.judge(flight.read([str(DUMPS / "gloo_json" / "extra")]))
    assert (verdict.conclusions[0].kind, verdict.conclusions[0].ranks) == ("other operation", (1,))


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_read_what_the_unpickler_reads(kind: str) -> None:
    for path in (DUMPS / "gloo" / kind).iterdir():
        data = path.read_bytes()
        assert dump._streamed(data) == dump.judged(plain.load(data), "pickle", "")


def test_names_hosts_and_packing_do_not_matter(tmp_path: Path) -> None:
    names = (
        "host-a/fr_rank0.pkl",
        "host-a/trace_rank=1.pickle",
        "host-b/comm_lib_trace_rank_2",
        "host-b/dump-3.pkl.gz",
    )
    for rank, name in enumerate(names):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        data = (DUMPS / "gloo" / "skipped" / f"nccl_trace_rank_{rank}").read_bytes()
        target.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    verdict = flight.judge(flight.read([str(tmp_path / n) for n in names]))
    assert verdict.dumped == (0, 1, 2, 3)
    assert verdict.conclusions[0].ranks == (2,)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_cut_dump_is_read_up_to_its_cut(tmp_path: Path, share: float) -> None:
    shutil.copytree(DUMPS / "gloo" / "skipped", tmp_path / "d")
    path = tmp_path / "d" / "nccl_trace_rank_0"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    os.utime(path)
    found = flight.read([str(tmp_path / "d")])
    cut = [d for d in found.dumps if d.cut]
    assert [d.rank for d in cut] == [0] or [u.path for u in found.unread] == [str(path)]
    assert not any(d.cut for d in found.dumps if d.rank)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_order_of_files_does_not_matter(order: tuple[int, ...]) -> None:
    paths = [str(DUMPS / "gloo" / "extra" / f"nccl_trace_rank_{r}") for r in order]
    assert flight.judge(flight.read(paths)).conclusions[0].ranks == (1,)


@pytest.mark.parametrize("kind", sorted(NCCL))
def test_nccl(kind: str) -> None:
    cause = flight.judge(flight.read([str(DUMPS / "nccl" / kind)])).conclusions[0]
    assert (cause.kind, cause.ranks) == NCCL[kind]
