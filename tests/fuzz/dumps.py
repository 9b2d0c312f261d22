"""Readers of Flight Recorder dumps and of snapshots of CUDA memory, as files and out of archives."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

from fixtures.logs import snapshots
from fsdp_doctor.diagnosis import flight
from fsdp_doctor.diagnosis.flight.child import dump, large_snapshot, plain
from fsdp_doctor.diagnosis.flight.reading import Tables
from fsdp_doctor.diagnosis.flight.settling import settle
from fsdp_doctor.diagnosis.memory_snapshots import summary_of
from fsdp_doctor.diagnosis.session import read
from fsdp_doctor.diagnosis.snapshot_words import said
from fsdp_doctor.subjects.flight import FlightDumps
from tests.fuzz.target import FIXTURES, Target, files

WHOLE = FIXTURES / "dumps" / "nccl" / "missing" / "nccl_trace_rank_1"


def _flight(data: bytes, place: Path) -> object:
    paths = (place / "nccl_trace_rank_0", place / "nccl_trace_rank_1")
    paths[0].write_bytes(data)
    paths[1].write_bytes(WHOLE.read_bytes())
    tables = Tables()
    try:
        answers = [(str(p), json.loads(json.dumps(dump.describe(str(p))))) for p in paths]
    except MemoryError:
        return None  # the child that reads dumps has a limit, and says so of this file
    kept, dropped, notes = settle([tables.dump(p, a) for p, a in answers if a.get("kind") == "dump"])
    found = FlightDumps(kept, tuple(tables.operations), tuple(tables.sites), tuple(dropped), notes)
    return flight.judge(found)


def _plain(data: bytes, place: Path) -> object:
    try:
        return plain.load(data)
    except (plain.Refused, plain.Cut, MemoryError):
        return None  # a number that asks for too much memory: the child that reads dumps has a limit


def _snapshot(data: bytes, place: Path) -> object:
    path = place / "rank3_snapshot.pickle"
    path.write_bytes(data)
    try:
        answer = json.loads(json.dumps(dump.describe(str(path))))
    except MemoryError:
        return None
    if answer["kind"] != "snapshot":
        return answer["problem"]
    return list(said(summary_of(str(path), str(path), answer)))


def _large(data: bytes, place: Path) -> object:
    path = place / "snapshot.pickle"
    path.write_bytes(data)
    try:
        return json.dumps(large_snapshot.read(str(path)))
    except (plain.Refused, plain.Cut, MemoryError, RecursionError):
        return None


def _snapshots() -> list[bytes]:
    made = [pickle.dumps(make(), protocol=p) for make in snapshots.SHAPES.values() for p in (2, 4)]
    return [*made, pickle.dumps(snapshots.long(30, 512), protocol=5)]


def _packed(data: bytes, place: Path) -> object:
    (place / "job.tar.gz").write_bytes(data)
    found = read([str(place / "job.tar.gz")])
    return [Path(p).stat().st_size for p in (*found.dumps, *found.snapshots)]


def _archives() -> list[bytes]:
    made = []
    for mode in ("w", "w:gz", "w:xz"):
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode=mode) as archive:  # type: ignore[call-overload]
            for name, data in (("fr/nccl_trace_rank_0", WHOLE.read_bytes()), ("s.pickle", _snapshots()[0])):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        made.append(tar.getvalue())
    return made


TARGETS: Mapping[str, Target] = {
    "flight-pickle": Target(lambda: [*files("dumps/nccl", "nccl*"), *files("dumps/gloo", "nccl*")], _flight),
    "flight-json": Target(lambda: files("dumps/gloo_json", "*rank*"), _flight),
    "plain-pickle": Target(lambda: files("dumps/gloo", "nccl*"), _plain),
    "memory-snapshot": Target(_snapshots, _snapshot),
    "large-snapshot": Target(_snapshots, _large),
    "packed-dumps": Target(_archives, _packed),
}
