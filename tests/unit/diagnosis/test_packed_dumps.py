"""Dumps and snapshots in archives and pipes are read like files, under the names that they have there."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.dumps.simulate import Action, Hang, Sim, fsdp_step, write
from fixtures.logs import snapshots
from fsdp_doctor.diagnosis import flight
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.readers import spool
from fsdp_doctor.diagnosis.session import Read, incident, read

DUMPS = Path(__file__).parents[3] / "fixtures" / "dumps"
SKIPPED = [DUMPS / "gloo" / "skipped" / f"nccl_trace_rank_{rank}" for rank in range(4)]
SNAPSHOT = snapshots.snapshot(snapshots.fragmented(), oom=512)
NAME = "rank2_memory_snapshot.pickle"
Pack = Callable[[Path, dict[str, bytes]], Path]


def tarred(mode: str) -> Pack:
    def pack(path: Path, files: dict[str, bytes]) -> Path:
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return path

    return pack


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tar_zst(path: Path, files: dict[str, bytes]) -> Path:
    zstandard = pytest.importorskip("zstandard")
    plain = tarred("w")(path.with_suffix(".plain"), files)
    path.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    plain.unlink()
    return path


PACKS: dict[str, Pack] = {
    "job.tar": tarred("w"),
    "job.tar.gz": tarred("w:gz"),
    "job.tar.xz": tarred("w:xz"),
    "job.zip": zipped,
    "job.tar.zst": tar_zst,
}


def judged(found: Read) -> tuple[str, tuple[int, ...]]:
    verdict = flight.judge(flight.read(found.dumps, names=found.spool.names))
    return verdict.conclusions[0].kind, verdict.conclusions[0].ranks


@pytest.mark.parametrize("name", PACKS)
def test_archives(tmp_path: Path, name: str) -> None:
    files = {f"run/fr/{p.name}": p.read_bytes() for p in SKIPPED}
    path = PACKS[name](tmp_path / name, {**files, f"run/{NAME}": SNAPSHOT, "run/job.log": b"step 1\n"})
    found = read([str(path)])
    assert judged(found) == ("never entered", (2,))
    evidence = incident(found)
    (snapshot,) = evidence.snapshots
    assert (snapshot.rank, snapshot.path) == (2, f"{path}:run/{NAME}")
    assert conclude(evidence).cause is not None
    assert not [i for i in evidence.inputs if i.kind == "unread"]
    dumps = flight.read(found.dumps, names=found.spool.names).dumps
    assert [d.path for d in dumps] == [f"{path}:{n}" for n in files], "the archive's names are shown"
    assert all(d.modified is None for d in dumps), "the time of unpacking is none of the dump's"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_single_packed_files(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    suffix = "gz" if pack is gzip.compress else "bz2"
    for path in SKIPPED:
        (tmp_path / f"{path.name}.{suffix}").write_bytes(pack(path.read_bytes()))
    (tmp_path / f"{NAME}.{suffix}").write_bytes(pack(SNAPSHOT))
    found = read([str(tmp_path)])
    assert judged(found) == ("never entered", (2,))
    assert [s.rank for s in incident(found).snapshots] == [2]


def rank_3_hangs(rank: int) -> Iterator[Action]:
    yield from fsdp_step(rank, world=4)
    if rank == 3:
        yield Hang()
    yield from fsdp_step(rank, world=4)


def test_json_dumps_in_an_archive_are_no_logs(tmp_path: Path) -> None:
    folder = write(Sim(4, rank_3_hangs).run(), tmp_path / "d", form="json")
    path = zipped(tmp_path / "job.zip", {p.name: p.read_bytes() for p in folder.iterdir()})
    found = read([str(path)])
    assert not found.scans
    assert judged(found) == ("never entered", (3,))


def test_folders_of_hosts_in_an_archive_count_on(tmp_path: Path) -> None:
    folder = write(Sim(4, rank_3_hangs).run(), tmp_path / "d")
    files = {
        f"{'host-a' if r < 2 else 'host-b'}/fr_rank{r % 2}": (folder / f"nccl_trace_rank_{r}").read_bytes()
        for r in range(4)
    }
    found = read([str(tarred("w")(tmp_path / "job.tar", files))])
    assert judged(found) == ("never entered", (3,))


def test_a_pipe(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fsdp_doctor", "diagnose", "-", "--format", "json"]
    done = subprocess.run(words, input=SNAPSHOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert b"LOG022" in done.stdout


def test_names_lead_nowhere_and_nothing_stays(tmp_path: Path) -> None:
    files = {
        "../../../../etc/nccl_trace_rank_0": SKIPPED[0].read_bytes(),
        "/abs/nccl_trace_rank_1": SKIPPED[1].read_bytes(),
    }
    before = set(glob.glob(os.path.join(tempfile.gettempdir(), "fsdp-doctor-*")))
    found = read([str(tarred("w")(tmp_path / "job.tar", files))])
    (folder,) = set(glob.glob(os.path.join(tempfile.gettempdir(), "fsdp-doctor-*"))) - before
    assert len(found.dumps) == 2
    assert all(os.path.realpath(d).startswith(os.path.realpath(folder) + os.sep) for d in found.dumps)
    assert os.stat(folder).st_mode & 0o077 == 0
    del found
    assert not os.path.exists(folder)


def test_what_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LARGEST", 1000)
    found = read([str(tarred("w")(tmp_path / "job.tar", {NAME: SNAPSHOT}))])
    assert [(i.name, "too large" in i.problem) for i in found.unread] == [
        (f"{tmp_path}/job.tar:{NAME}", True)
    ]
    assert not found.snapshots
