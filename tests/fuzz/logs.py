"""Readers of logs, in every form in which they come, and of stacks."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from fixtures.logs.scenes import SCENES
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.live import faulthandler_stacks, pyspy
from fsdp_doctor.diagnosis.prefixes import rank_in_text, strip, style_of
from fsdp_doctor.diagnosis.recording.console import Console
from fsdp_doctor.diagnosis.session import incident, read
from fsdp_doctor.facts.redact import Redactor
from fsdp_doctor.probe.nccl_log import transports
from tests.fuzz.target import Read, Target, files

YEAR = 2026


def log(name: str) -> Read:
    """Diagnose a file of that name."""

    def look(data: bytes, place: Path) -> object:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return conclude(incident(read([str(path)])))

    return look


def scenes() -> list[bytes]:
    """Logs of the scenes that tests diagnose."""
    texts = [t for s in SCENES.values() for t in s.files.values()]
    return [t if isinstance(t, bytes) else t.encode() for t in texts if t]


def _prefixes(data: bytes, place: Path) -> object:
    text = data.decode("utf-8", "replace")
    style = style_of(text[:4096], YEAR)
    return [(strip(line, style), rank_in_text(line)) for line in text.splitlines()[:200]]


def _archives() -> list[bytes]:
    text, tar, box = scenes()[0], io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number in range(3):
            entry = tarfile.TarInfo(f"logs/rank_{number}.log")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("logs/rank_0.log", text)
    return [gzip.compress(text), tar.getvalue(), gzip.compress(tar.getvalue()), box.getvalue()]


def _json_logs() -> list[bytes]:
    lines = [w for t in scenes()[:8] for w in t.decode("utf-8", "replace").splitlines()[:20]]
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
FAULTHANDLER = b"""Thread 0x00007f1 (most recent call first):
  File "/a/b.py", line 3 in f

Current thread 0x00007f2 [python] (most recent call first):
  File "/a/c.py", line 4 in <module>
  ...
"""
NCCL = b"""host1:811:902 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host1:811:902 [0] NCCL INFO Channel 01/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA
host1:811:902 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
host1:811:902 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
"""
SECRET = "hf_" + "Ab1" * 12
"""In the form of a token of the Hugging Face hub."""
SECRETS = (
    f"export HF_TOKEN={SECRET}\nAuthorization: Bearer {SECRET}\nconfig: {{'api_key': '{SECRET}'}}\n".encode()
)


def _pyspy() -> list[bytes]:
    frames = [{"name": "f", "filename": "/a/b.py", "short_filename": "b.py", "line": 3, "locals": None}]
    thread = {"pid": 5, "thread_id": 7, "thread_name": "MainThread", "active": True, "owns_gil": True}
    return [json.dumps([{**thread, "os_thread_id": 9, "frames": frames * 4}] * 3).encode()]


def _console(data: bytes, place: Path) -> object:
    """What `run` passes on and keeps, in pieces; whole lines with a token must not be kept."""
    console = Console(place / "console.log", lambda text: None)
    console._deaf = {1, 2}  # shown to nobody here
    for at in range(0, len(data), 97):
        console.take(3 + at % 2, data[at : at + 97], 1)
    console.close()
    return Redactor().text(data.decode("latin-1"))


def _no_token(data: bytes, place: Path) -> object:
    """A token on a line of its own is found in whatever stands around it."""
    line = b"\nHF_TOKEN=" + SECRET.encode() + b"\n"
    text = Redactor().text((data + line + data).decode("latin-1"))
    assert SECRET not in text or data.count(SECRET.encode()), "a token was kept"
    return text


TARGETS: Mapping[str, Target] = {
    "log": Target(scenes, log("train.log")),
    "rank-log": Target(lambda: files("logs/nccl", "*.log"), log("attempt_0/1/stderr.log")),
    "job-log": Target(lambda: files("logs/jobs", "job.log"), log("slurm-12.out")),
    "prefixes": Target(scenes, _prefixes),
    "json-log": Target(_json_logs, log("wandb.json")),
    "archive": Target(_archives, log("logs.tar.gz")),
    "error-file": Target(lambda: [ERROR_FILE], log("attempt_0/1/error.json")),
    "kernel-log": Target(lambda: [KERNEL], log("kernel.log")),
    "sacct": Target(lambda: [SACCT], log("sacct.txt")),
    "stacks": Target(lambda: [*files("logs", "*.txt"), FAULTHANDLER], log("stacks/rank_1.txt")),
    "py-spy": Target(_pyspy, lambda data, place: pyspy.parse(data)),
    "faulthandler": Target(
        lambda: [FAULTHANDLER], lambda data, place: faulthandler_stacks.parse(data.decode("utf-8", "replace"))
    ),
    "nccl-log": Target(
        lambda: [NCCL, *files("logs/nccl", "*.log")],
        lambda data, place: transports([data.decode("utf-8", "replace")]),
    ),
    "console": Target(lambda: [SECRETS, *scenes()[:8]], _console),
    "redact": Target(lambda: [SECRETS, *scenes()[:8]], _no_token),
}
