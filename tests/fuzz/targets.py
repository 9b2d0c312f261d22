"""The readers, each with seeds that it reads and how it is called. Whatever comes in, none may raise."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fixtures.checkpoints import saved
from fixtures.logs.all_scenes import SCENES
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.diagnosis import flight
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.flight.child import dump, plain
from fsdp_doctor.diagnosis.flight.reading import Tables
from fsdp_doctor.diagnosis.flight.settling import settle
from fsdp_doctor.diagnosis.live import faulthandler_stacks, pyspy
from fsdp_doctor.diagnosis.prefixes import rank_in_text, strip, style_of
from fsdp_doctor.diagnosis.session import incident, read
from fsdp_doctor.subjects.flight import FlightDumps
from tests.unit.ckpt.making import Tensor, safetensors, small, torch_file

FIXTURES = Path(__file__).parents[2] / "fixtures"
YEAR = 2026


@dataclass(frozen=True)
class Target:
    """One reader. `read` gets the bytes and a folder of its own to put them into."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]


def _files(folder: str, pattern: str, most: int = 12) -> list[bytes]:
    found = sorted(
        p for p in (FIXTURES / folder).rglob(pattern) if p.is_file() and p.stat().st_size < 1 << 17
    )
    return [p.read_bytes() for p in found[:: max(1, len(found) // most)]]


def _log(name: str) -> Callable[[bytes, Path], object]:
    def look(data: bytes, place: Path) -> object:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return conclude(incident(read([str(path)])))

    return look


def _scenes() -> list[bytes]:
    texts = [t for s in SCENES.values() for t in s.files.values()]
    return [t if isinstance(t, bytes) else t.encode() for t in texts if t]


def _prefixes(data: bytes, place: Path) -> object:
    text = data.decode("utf-8", "replace")
    style = style_of(text[:4096], YEAR)
    return [(strip(line, style), rank_in_text(line)) for line in text.splitlines()[:200]]


def _archives() -> list[bytes]:
    log, tar, box = _scenes()[0], io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number in range(3):
            entry = tarfile.TarInfo(f"logs/rank_{number}.log")
            entry.size = len(log)
            archive.addfile(entry, io.BytesIO(log))
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("logs/rank_0.log", log)
    return [gzip.compress(log), tar.getvalue(), gzip.compress(tar.getvalue()), box.getvalue()]


def _json_logs() -> list[bytes]:
    lines = [w for t in _scenes()[:8] for w in t.decode("utf-8", "replace").splitlines()[:20]]
    made = [{"time": f"2026-01-01T00:00:{i % 60:02}Z", "rank": i % 4, "log": w} for i, w in enumerate(lines)]
    return ["\n".join(map(json.dumps, made)).encode(), json.dumps(made).encode()]


KERNEL = b"""[Wed Dec  2 07:43:47 2026] NVRM: Xid (PCI:0000:00:06): 79, pid=679, name=python3, GPU has fallen off the bus.
2026-12-02T07:44:15,208531+00:00 Out of memory: Killed process 883 (python3) total-vm:1000kB, anon-rss:900kB, file-rss:0kB
Dec  2 07:44:16 node1 kernel: mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged
"""
ERROR_FILE = json.dumps(
    {"message": {"message": "ValueError: bad sample", "extraInfo": {
        "py_callstack": 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\nValueError: bad sample\n',
        "timestamp": "1796197576"}}}
).encode()  # fmt: skip
SACCT = b"""JobID|State|ExitCode|MaxRSS|ReqMem|NodeList
812|FAILED|1:0||32G|node[1-4]
812.0|OUT_OF_MEMORY|0:125|31.9G|32G|node3
"""


def _pyspy() -> list[bytes]:
    frames = [{"name": "f", "filename": "/a/b.py", "short_filename": "b.py", "line": 3, "locals": None}]
    thread = {"pid": 5, "thread_id": 7, "thread_name": "MainThread", "active": True, "owns_gil": True}
    return [json.dumps([{**thread, "os_thread_id": 9, "frames": frames * 4}] * 3).encode()]


FAULTHANDLER = b"""Thread 0x00007f1 (most recent call first):
  File "/a/b.py", line 3 in f

Current thread 0x00007f2 [python] (most recent call first):
  File "/a/c.py", line 4 in <module>
  ...
"""


def _flight(data: bytes, place: Path) -> object:
    paths = (place / "nccl_trace_rank_0", place / "nccl_trace_rank_1")
    paths[0].write_bytes(data)
    paths[1].write_bytes((FIXTURES / "dumps" / "nccl" / "missing" / "nccl_trace_rank_1").read_bytes())
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


def _metadata() -> list[bytes]:
    return [(saved.checkpoint("fsdp2_dcp.2") / ".metadata").read_bytes()]


def _checkpoint(data: bytes, place: Path) -> object:
    small().write(place)
    (place / ".metadata").write_bytes(data)
    return read_here(str(place))


def _file(name: str) -> Callable[[bytes, Path], object]:
    def look(data: bytes, place: Path) -> object:
        (place / name).write_bytes(data)
        return read_here(str(place))

    return look


def _torch_files() -> list[bytes]:
    return [torch_file({"w": Tensor("0", (4, 4)), "v": Tensor("1", (2,))}, {"step": 3})]


TARGETS: Mapping[str, Target] = {
    "log": Target(_scenes, _log("train.log")),
    "rank-log": Target(lambda: _files("logs/nccl", "*.log"), _log("attempt_0/1/stderr.log")),
    "job-log": Target(lambda: _files("logs/jobs", "job.log"), _log("slurm-12.out")),
    "prefixes": Target(_scenes, _prefixes),
    "json-log": Target(_json_logs, _log("wandb.json")),
    "archive": Target(_archives, _log("logs.tar.gz")),
    "error-file": Target(lambda: [ERROR_FILE], _log("attempt_0/1/error.json")),
    "kernel-log": Target(lambda: [KERNEL], _log("kernel.log")),
    "sacct": Target(lambda: [SACCT], _log("sacct.txt")),
    "stacks": Target(lambda: [*_files("logs", "*.txt"), FAULTHANDLER], _log("stacks/rank_1.txt")),
    "py-spy": Target(_pyspy, lambda data, place: pyspy.parse(data)),
    "faulthandler": Target(
        lambda: [FAULTHANDLER], lambda data, place: faulthandler_stacks.parse(data.decode("utf-8", "replace"))
    ),
    "flight-pickle": Target(
        lambda: [*_files("dumps/nccl", "nccl*"), *_files("dumps/gloo", "nccl*")], _flight
    ),
    "flight-json": Target(lambda: _files("dumps/gloo_json", "*rank*"), _flight),
    "plain-pickle": Target(lambda: _files("dumps/gloo", "nccl*"), _plain),
    "dcp-metadata": Target(_metadata, _checkpoint),
    "torch-file": Target(_torch_files, _file("m.pt")),
    "safetensors": Target(lambda: [safetensors({"a": (3, 4), "b": (5,)})], _file("m.safetensors")),
}
