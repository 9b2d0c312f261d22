"""What was recorded is judged like the machine itself, and holds none of its secrets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import machines
from fixtures.machines import Machine
from fixtures.memory import source_of
from fsdp_doctor.facts.collect import KINDS, collect
from fsdp_doctor.facts.live import LiveSource
from fsdp_doctor.facts.recorded import MemoryTree, RecordedSource, open_recording
from fsdp_doctor.facts.recording import NotSaved, contents, with_ranks, write
from fsdp_doctor.facts.source import text
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.storage import Storage


def in_job() -> Machine:
    m = machines.job_node("node-a", "10.30.0.11/24")
    m.rank, m.world_size = 1, 4
    m.env |= {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.30.0.11"}
    m.manifest |= {"checkpoint_dir": "/mnt/ckpt", "clock_offset_seconds": 0.25}
    return m


def rich() -> Machine:
    """A machine whose files, links and parts are odd in every way that a recording has to keep."""
    m = machines.geforce()
    m.manifest |= {
        "units": {"nvidia-persistenced": "active"},
        "stat": {"/dev/shm/nccl-AbCd": [9_000_000, 1000]},
    }
    m.put("dev/shm/nccl-AbCd", "")
    m.put("proc/1/cmdline", b"/sbin/init\0splash\0")
    m.put("proc/77/status", "Name:\tpython\nState:\tD (disk sleep)\nPPid:\t1\nUid:\t0\t0\t0\t0")
    m.put("proc/77/wchan", "nfs_wait_bit_killable")
    m.put("etc/nccl.conf", "NCCL_DEBUG=WARN\nNCCL_IB_HCA=mlx5_0")
    m.dirs |= {"sys/kernel/iommu_groups/0", "sys/kernel/iommu_groups/1"}
    m.links["usr/lib/x86_64-linux-gnu/libnccl.so.2"] = "libnccl.so.2.29.7"
    m.put("usr/lib/x86_64-linux-gnu/libnccl.so.2.29.7", "")
    m.put("proc/net/tcp", b"  sl  local_address\xff\n   0: 0100007F:1F90 00000000:0000 0A\n")
    return m


MACHINES: dict[str, Callable[[], Machine]] = {
    "h100": machines.h100,
    "a100": machines.a100,
    "l40s": machines.l40s,
    "geforce": machines.geforce,
    "h200-vm": machines.h200_vm,
    "laptop": machines.laptop,
    "container": machines.h100_container,
    "job": in_job,
    "rich": rich,
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_recording_again_keeps_every_fact(name: str, form: str, tmp_path: Path) -> None:
    source = source_of(MACHINES[name]())
    place = tmp_path / ("r.zip" if form == "zip" else "r")
    files = contents(source)
    write(files, place)
    again = open_recording(place)
    before, after = collect(source, KINDS), collect(again, KINDS)
    for kind in KINDS:
        assert before.fact(kind) == after.fact(kind), kind
    assert before.find(Host) is not None
    assert contents(again) == files


def test_manifest_names_the_rank(tmp_path: Path) -> None:
    files = contents(source_of(in_job()))
    manifest = json.loads(files["manifest.json"])
    assert manifest["schema"] == "fsdp-doctor-recording/1"
    assert (manifest["host"], manifest["rank"], manifest["world_size"]) == ("node-a", 1, 4)
    assert (manifest["checkpoint_dir"], manifest["clock_offset_seconds"]) == ("/mnt/ckpt", 0.25)
    assert manifest["tool"].startswith("fsdp-doctor ")


def test_parts_that_are_missing_say_why() -> None:
    m = machines.laptop()
    files = m.contents()
    del files["nvml.json"]
    files["stack.json"] = b"{"
    out = contents(RecordedSource(MemoryTree(files)))
    reasons = json.loads(out["manifest.json"])["not_recorded"]
    assert "nvml.json" in reasons["nvml"] and "JSON" in reasons["stack"]
    assert reasons["kernel_log"] == "permission denied: dmesg_restrict is 1"
    assert not {"nvml.json", "stack.json", "kernel_log.txt"} & set(out)
    assert "JSON" in str(RecordedSource(MemoryTree(out)).stack())


def test_files_are_as_on_the_machine() -> None:
    files = contents(source_of(rich()))
    assert files["root/dev/nvidia0"] == b""
    assert files["root/proc/1/cmdline"] == b"/sbin/init\0splash\0"
    assert b"\xff" in files["root/proc/net/tcp"]
    assert files["root/sys/kernel/iommu_groups/1/"] == b""
    links = json.loads(files["links.json"])
    assert links["usr/lib/x86_64-linux-gnu/libnccl.so.2"] == "libnccl.so.2.29.7"
    assert links["sys/class/net/lo"] == "../../devices/virtual/net/lo"


def test_ranks_in_one_recording(tmp_path: Path) -> None:
    ranks = machines.two_nodes().ranks
    first, *further = [contents(source_of(m)) for m in ranks]
    write(with_ranks(first, dict(enumerate(further, 1))), tmp_path / "job.zip")
    job = open_recording(tmp_path / "job.zip")
    assert job.ranks() == (1, 2, 3)
    assert [job.rank(n).manifest.host for n in job.ranks()] == ["node-a", "node-b", "node-b"]


def test_newest_lines_of_a_long_log_are_kept() -> None:
    m = machines.laptop()
    m.kernel_log = "".join(f"[{i}.000000] line {i}\n" for i in range(300_000))
    log = contents(source_of(m))["kernel_log.txt"]
    assert len(log) <= 4 << 20
    assert log.startswith(b"[") and log.endswith(b"line 299999\n")


# ------------------------------------------------------------------------------------------- secrets
SECRETS = {
    "env name": "p4ssphrase-env-1",
    "env token": "tok-env-9f8e7d6c5b",
    "env value": "hf_QmFkU2VjcmV0VmFsdWVIZXJl",
    "env NCCL": "AKIAQ7EXAMPLE4KEYS12",
    "env url": "pr0xyPassw0rd",
    "env jwt": "eyJhbGciOiJIUzI1NiJ9.eyJqb2IiOjE3fQ.c2lnbmF0dXJlLWhlcmU",
    "env pem": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "env wandb": "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    "env cookie": "c00kie-session-77",
    "env connection": "AccountKeyV4lue==",
    "kernel command line": "b00tt0ken-5566",
    "kernel command line url": "imgpassw0rd",
    "process flag": "fl4g-value-token",
    "process assignment": "assigned, with a comma and bl4nks",
    "process github": "ghp_0123456789abcdefghijABCDEFGHIJ456789",
    "process header": "b3arer.abc.def-123",
    "process account": "curlpassw0rd",
    "process slack": "xoxp-1234567890-abcdefghij",
    "process openai": "sk-proj-Zyxwvutsrqponmlkjihg",
    "log assignment": "l0gged-secret-value",
    "log json": "js0n-logged, value",
    "log pem": "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU",
    "log url": "git-passw0rd-in-log",
    "mount password": "cifs!passw0rd",
    "mount account": "alice.ops",
    "mount source": "smbpassw0rd",
    "mount key": "AQBceph0secret1key==",
    "nccl.conf": "github_pat_11ABCDEFG0abcdefghijkl_mnop",
    "hash of an account": "$6$rounds=5000$saltsalt$hash",
    "person": "Alice Example",
}


def seeded() -> Machine:
    m = machines.h100()
    s = SECRETS
    m.env |= {
        "DB_PASSPHRASE": s["env name"],
        "SLURM_STEP_TOKEN": s["env token"],
        "RUN_NAME": f"try {s['env value']} once",
        "NCCL_DEBUG_FILE": f"/tmp/{s['env NCCL']}.log",
        "https_proxy": f"http://me:{s['env url']}@proxy:3128/",
        "K8S_SERVICE": s["env jwt"],
        "TLS": f"-----BEGIN PRIVATE KEY-----\n{s['env pem']}\n-----END PRIVATE KEY-----\n",
        "WANDB_API_KEY": s["env wandb"],
        "JUPYTER_COOKIE": s["env cookie"],
        "AZ": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={s['env connection']};x=y",
        # harmless ones
        "NCCL_IB_PKEY": "0x7fff",
        "NCCL_SOCKET_IFNAME": "eno1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "PWD": "/home/user/run",
        "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
    }
    line = m.get("proc/cmdline").strip()
    m.put(
        "proc/cmdline",
        f"{line} token={s['kernel command line']} img=http://i:{s['kernel command line url']}@h/x iommu=pt",
    )
    arguments = {
        301: ["python", "train.py", "--wandb-token", s["process flag"], "--lr", "1e-4"],
        302: ["python", "train.py", f"--db-password={s['process assignment']}", s["env wandb"]],
        303: ["git", "clone", f"https://{s['process github']}@github.com/x/y"],
        304: [
            "curl",
            "-H",
            f"Authorization: Bearer {s['process header']}",
            "-u",
            f"me:{s['process account']}",
        ],
        305: ["sh", "-c", f"export A={s['process slack']}; K='{s['process openai']}' python x.py"],
    }
    for pid, words in arguments.items():
        m.put(f"proc/{pid}/comm", words[0])
        m.put(f"proc/{pid}/cmdline", "\0".join(words).encode() + b"\0")
    m.log(
        f"[  100.000001] app[7]: api_key={s['log assignment']} started",
        f'[  100.000002] app[7]: {{"secret": "{s["log json"]}", "rank": 3}}',
        "[  100.000003] app[7]: -----BEGIN OPENSSH PRIVATE KEY-----",
        f"[  100.000004] app[7]: {s['log pem']}",
        "[  100.000005] app[7]: -----END OPENSSH PRIVATE KEY-----",
        f"[  100.000006] git: https://me:{s['log url']}@host/x and WANDB says {s['env wandb']}",
        "[  101.000000] NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    )
    m.mounts += [
        (
            "/mnt/a",
            "cifs",
            f"//bob:{s['mount source']}@srv/a",
            f"rw,username={s['mount account']},password={s['mount password']}",
        ),
        ("/mnt/b", "ceph", "10.0.0.1:/", f"rw,name=train,secret={s['mount key']}"),
    ]
    m.put("etc/nccl.conf", f"NCCL_DEBUG=WARN\nNCCL_NET_PLUGIN={s['nccl.conf']}")
    m.put("etc/passwd", f"user:{s['hash of an account']}:1000:1000:{s['person']}:/home/user:/bin/sh")
    return m


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_no_secret_is_written(form: str, tmp_path: Path) -> None:
    machine = seeded()
    original = b"\0".join(machine.contents().values())
    for name, secret in SECRETS.items():
        inside = json.dumps(secret)[1:-1].encode()
        assert secret.encode() in original or inside in original, f"{name} was not planted"
    place = tmp_path / ("r.zip" if form == "zip" else "r")
    write(contents(source_of(seeded())), place)
    written: dict[str, bytes] = {}
    if form == "zip":
        with zipfile.ZipFile(place) as archive:
            written = {n: n.encode() + archive.read(n) for n in archive.namelist()}
        written["the archive itself"] = place.read_bytes()
    else:
        written = {str(p): os.fsencode(p) + p.read_bytes() for p in place.rglob("*") if p.is_file()}
    assert len(written) > 500
    for name, secret in SECRETS.items():
        for form_of in {secret.encode(), json.dumps(secret)[1:-1].encode()}:
            where = [f for f, raw in written.items() if form_of in raw]
            assert not where, f"{name} stands in {where}"


def test_harmless_values_survive() -> None:
    out = RecordedSource(MemoryTree(contents(source_of(seeded()))))
    env = out.env()
    assert isinstance(env, Known)
    for name in (
        *("NCCL_IB_PKEY", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM"),
        *("TORCH_NCCL_BLOCKING_WAIT", "PWD", "SSH_AUTH_SOCK", "PATH", "HOME"),
    ):
        assert env.value[name] == seeded().env[name], name
    assert env.value["https_proxy"] == "http://<redacted>@proxy:3128/"
    boot = text(out, "/proc/cmdline") or ""
    assert boot.endswith("token=<redacted> img=http://<redacted>@h/x iommu=pt")
    host = collect(out, [Host, Environment])[Host]
    commands = {p.pid: p.cmdline for p in host.processes}
    assert commands[301] == ("python", "train.py", "--wandb-token", "<redacted>", "--lr", "1e-4")
    assert commands[302] == ("python", "train.py", "--db-password=<redacted>", "<redacted>")
    assert 'rank": 3' in str(out.kernel_log()) and "Xid (PCI:0000:1b:00): 79, pid=1234" in str(
        out.kernel_log()
    )
    mounts = text(out, "/proc/self/mountinfo") or ""
    assert "//<redacted>@srv/a rw,username=<redacted>,password=<redacted>" in mounts
    assert "rw,name=train,secret=<redacted>" in mounts
    assert text(out, "/etc/passwd") == "user:x:1000:1000::/home/user:/bin/sh"
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/cpuinfo", "/proc/self/limits"):
        assert out.read(path) == source_of(seeded()).read(path), path
    assert out.nvml() == source_of(seeded()).nvml() and out.stack() == source_of(seeded()).stack()
    assert out.net() == source_of(seeded()).net()


# ------------------------------------------------------------------------------------------- writing
FILES = {"manifest.json": b"{}", "root/a/b": b"1", "root/empty/": b""}


@pytest.mark.parametrize("name", ["r", "r.zip", "R.ZIP"])
def test_writes_nothing_else(name: str, tmp_path: Path) -> None:
    saved = write(FILES, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert saved.path == tmp_path / name and saved.files == 2
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o077 == 0, "only the user may read it"


def test_archive_is_the_same_each_time(tmp_path: Path) -> None:
    write(FILES, tmp_path / "a.zip")
    write(dict(reversed(FILES.items())), tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert zipfile.ZipFile(tmp_path / "a.zip").namelist() == ["manifest.json", "root/a/b", "root/empty/"]


def test_existing_destination_stays(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("1")
    (tmp_path / "full.zip").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.zip").touch()
    (tmp_path / "dir.zip").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling.zip").symlink_to("nowhere")
    for name in ("full", "full.zip", "file", "dir.zip", "link", "dangling.zip"):
        with pytest.raises(NotSaved, match=name) as caught:
            write(FILES, tmp_path / name)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "full" / "mine").read_text() == "1"
    assert (tmp_path / "full.zip").read_text() == (tmp_path / "file").read_text() == "mine"
    for name in ("empty", "empty.zip"):
        assert write(FILES, tmp_path / name).files == 2


def test_destination_that_cannot_be_written(tmp_path: Path) -> None:
    for name in ("nowhere/r", "nowhere/r.zip"):
        with pytest.raises(NotSaved, match="there is no folder"):
            write(FILES, tmp_path / name)
    with pytest.raises(NotSaved, match="cannot write"):
        write({"a": b"1", "a/b": b"2"}, tmp_path / "clash")
    assert list(tmp_path.iterdir()) == [], "nothing half written stays"


def test_relative_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(FILES, Path("r"))
    write(FILES, Path("r.zip"))
    assert {p.name for p in tmp_path.iterdir()} == {"r", "r.zip"}


def test_unreadable_file_keeps_its_reason() -> None:
    class Locked(RecordedSource):
        def read(self, path: str, limit: int = 1 << 20) -> bytes | Unknown:
            return Unknown("permission denied") if path == "/proc/buddyinfo" else super().read(path, limit)

    m = machines.laptop()
    m.put("proc/buddyinfo", "x")
    again = RecordedSource(MemoryTree(contents(Locked(MemoryTree(m.contents())))))
    assert again.exists("/proc/buddyinfo")
    assert again.read("/proc/buddyinfo") == Unknown("permission denied")


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "ThisTestPlantedIt42" * 2
    monkeypatch.setenv("HF_TOKEN", secret)
    monkeypatch.setenv("RUN_TITLE", f"with {secret}")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    child = subprocess.Popen(["sleep", "60", f"--token={secret}"], stderr=subprocess.DEVNULL)
    live = LiveSource(ask={"system"}, checkpoint=str(tmp_path), seconds=30)
    try:
        files = contents(live, checkpoint=str(tmp_path))
        facts = collect(live, [Host], checkpoint=str(tmp_path))
    finally:
        live.close()
        child.kill()
        child.wait()
    assert not [n for n, raw in files.items() if secret.encode() in raw]
    write(files, tmp_path / "r.zip")
    source = open_recording(tmp_path / "r.zip")
    assert (source.manifest.rank, source.manifest.world_size) == (5, 8)
    assert source.manifest.checkpoint_dir == str(tmp_path) and "nvml" in source.manifest.not_recorded
    assert source.readlink("/proc/self") is None and "self" in source.listdir("/proc")
    again, host = collect(source, [Host, Storage]), facts[Host]
    for field in (
        "hostname",
        "kernel",
        "cpu_model",
        "cpus_online",
        "numa_nodes",
        "limits",
        "device_nodes",
        "uid",
    ):
        assert getattr(again[Host], field) == getattr(host, field), field
    checkpoint = again[Storage].checkpoint
    assert checkpoint is not None and checkpoint.exists and checkpoint.space is not None
    assert contents(source) == files
