"""Whatever is given: an answer, bounded memory, nothing executed, no secret shown."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.logs import HEALTHY, incident_of
from fixtures.logs.all_scenes import SCENES
from fsdp_doctor.diagnosis.culprit.decide import conclude
from fsdp_doctor.diagnosis.readers import streams
from fsdp_doctor.diagnosis.session import incident, read

FAILED = b'[rank2]: Traceback (most recent call last):\n[rank2]:   File "/job/a.py", line 3, in f\n[rank2]: ValueError: bad sample\n'
TEXTS = [t if isinstance(t, bytes) else t.encode() for s in SCENES.values() for t in s.files.values()]


def culprits(path: Path) -> tuple[int, ...]:
    cause = conclude(incident(read([str(path)]))).cause
    return cause.culprits if cause else ()


def tar(members: dict[str, bytes]) -> bytes:
    box = io.BytesIO()
    with tarfile.open(fileobj=box, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return box.getvalue()


def test_archives_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(tar({"logs/rank_1.log": HEALTHY.encode(), "logs/rank_2.log": FAILED}))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("logs/rank_2.log", FAILED)
    assert culprits(tmp_path / "a.tar.gz") == (2,)
    assert culprits(tmp_path / "b.zip") == (2,)


def test_zstd_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.log.zst").write_bytes(zstandard.ZstdCompressor().compress(FAILED))
    assert culprits(tmp_path / "a.log.zst") == (2,)


@pytest.mark.parametrize("kind", ["gz", "tar.gz", "zip"])
def test_what_is_cut_off_is_said(kind: str, tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(40_000).hex().encode()
    path = tmp_path / f"a.{kind}"
    if kind == "gz":
        data = gzip.compress(FAILED + noise)
    elif kind == "tar.gz":
        data = tar({"rank_2.log": FAILED + noise})
    else:
        box = io.BytesIO()
        with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rank_2.log", FAILED + noise)
        data = box.getvalue()
    path.write_bytes(data[: len(data) // 2])
    found = read([str(path)])
    problems = [s.problem for s in found.scans] + [u.problem for u in found.unread]
    assert any("cut or damaged" in p for p in problems), problems


def test_a_bomb_is_left_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RATIO_FROM", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a\n" * (16 << 20), 9))
    (scan,) = read([str(path)]).scans
    assert "times its size" in scan.problem
    assert scan.bytes < 24 << 20  # of 32


def test_archives_inside_archives_end(tmp_path: Path) -> None:
    data = FAILED
    for _ in range(8):
        data = gzip.compress(data)
    (tmp_path / "a.gz").write_bytes(data)
    found = read([str(tmp_path / "a.gz")])
    assert not found.scans
    assert "deeper than" in found.unread[0].problem


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        for _ in range(24):
            file.write(b"x" * (1 << 20))
        file.write(b" [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB ")
        file.write(b"y" * (8 << 20))
    cause = conclude(incident(read([str(path)]))).cause
    assert cause is not None
    assert cause.code == "LOG301"


def test_some_ranks_may_not_be_read(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "rank_1.log").write_bytes(FAILED)
    (tmp_path / "rank_0.log").write_text("x")
    (tmp_path / "rank_0.log").chmod(0)
    found = read([str(tmp_path)])
    assert "Permission denied" in found.unread[0].problem
    assert len(found.scans) == 1


def test_folders_and_pipes_do_not_trap(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a.log").write_bytes(FAILED)
    assert culprits(tmp_path) == (2,)


def test_deep_json_is_only_a_line() -> None:
    text = '{"message":' * 3000 + "1" + "}" * 3000 + "\n[rank1]: ValueError: x\n"
    assert conclude(incident_of({"a.log": text})).cause is not None


def cli(*words: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", "diagnose", *words],
        capture_output=True,
        timeout=60,
        check=False,
        **more,
    )  # type: ignore[call-overload]


def test_endless_input_ends_at_the_deadline() -> None:
    with subprocess.Popen(["yes", "step 1 loss 2"], stdout=subprocess.PIPE) as yes:
        done = cli("-", "--deadline", "2", "--format", "json", stdin=yes.stdout)
        yes.kill()
    assert done.returncode == 3, done.stderr
    assert any("deadline" in n for n in json.loads(done.stdout)["unjudged"])


def test_silent_input_ends_at_the_deadline() -> None:
    with subprocess.Popen(["sleep", "50"], stdout=subprocess.PIPE) as silent:
        done = cli("-", "--deadline", "2", stdin=silent.stdout)
        silent.kill()
    assert done.returncode == 3, done.stderr


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    secret = "hf_" + "abcdefghijklmnopqrstuv"
    (tmp_path / "a.log").write_text(
        f"[rank1]: ValueError: no access with token {secret}, password=hunter2hunter2\n"
    )
    for form in ("json", "text", "junit", "github"):
        done = cli(str(tmp_path / "a.log"), "--format", form, "--verbose")
        assert done.returncode == 1
        assert secret.encode() not in done.stdout
        assert b"hunter2hunter2" not in done.stdout


def test_no_such_file_is_one_line(tmp_path: Path) -> None:
    done = cli(str(tmp_path / "nothing.log"))
    assert done.returncode == 2
    assert b"there is no such file" in done.stderr
    assert b"Traceback" not in done.stderr


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS), st.randoms(use_true_random=False))
def test_mutilated_logs_never_raise(text: bytes, rng: random.Random) -> None:
    data = bytearray(text[: 1 << 16])
    for _ in range(rng.randrange(1, 20)):
        at = rng.randrange(max(len(data), 1))
        action = rng.randrange(4)
        if action == 0:
            del data[at : at + rng.randrange(1, 400)]
        elif action == 1:
            data[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif action == 2:
            data[at:at] = rng.choice(
                (b"\r", b"\n", b"\x1b[31m", b"[rank99999]: ", b"\xff\xfe", b"\x00", b'{"message":"', b"}")
            )
        else:
            other = rng.choice(TEXTS)
            data[at:at] = other[: rng.randrange(1, 2000)]
    conclude(incident_of({"job.log": bytes(data)}))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=600),
    st.sampled_from(
        [
            b"",
            b"\x1f\x8b\x08",
            b"\x28\xb5\x2f\xfd",
            b"BZh9",
            b"\xfd7zXZ\x00",
            b"PK\x03\x04",
            b"\xff\xfe",
            b"\x80\x02}",
        ]
    ),
)
def test_rubbish_files_never_raise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, magic: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish.log"
    path.write_bytes(magic + data)
    found = read([str(path)])
    conclude(incident(found))
