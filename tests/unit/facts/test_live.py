from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fsdp_doctor.facts import live
from fsdp_doctor.facts.addresses import interface_addresses, with_length
from fsdp_doctor.facts.asked import Asked
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.live import NVML, STACK, SYSTEM, LiveSource
from fsdp_doctor.facts.storage import storage
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.subjects.storage import Storage
from tests.unit.facts.literal import known

SYSTEM_CHILD = live.CHILDREN / "system_child.py"
LONG = 60.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LiveSource]:
    (tmp_path / "ckpt").mkdir()
    source = LiveSource(
        seconds=LONG,
        checkpoint=str(tmp_path / "ckpt"),
        names=["localhost", "no-such-host.invalid"],
        ask={SYSTEM},
    )
    yield source
    source.close()


def child(*arguments: str, seconds: float = LONG, before: str = "") -> Asked:
    """The system child; `before` is Python that runs in it first, to make a call of its own hang."""
    if not before:
        return Asked((sys.executable, "-I", "-S", str(SYSTEM_CHILD), *arguments), seconds)
    program = (
        f"{textwrap.dedent(before)}\nimport runpy, sys\nsys.argv = ['child', *{arguments!r}]\n"
        f"runpy.run_path({str(SYSTEM_CHILD)!r}, run_name='__main__')\n"
    )
    return Asked((sys.executable, "-I", "-S", "-c", program), seconds)


HANGING_STAT = """
    import os, time
    real = os.stat
    def stat(path, *args, **kwargs):
        if str(path).startswith("/dead"):
            time.sleep(600)
        return real(path, *args, **kwargs)
    os.stat = stat
"""


class TestThisMachine:
    def test_all_facts_of_the_system(self, machine: LiveSource, tmp_path: Path) -> None:
        facts = collect(machine, (Host, Network, Storage, KernelLog), checkpoint=str(tmp_path / "ckpt"))
        host = facts[Host]
        assert host.hostname == socket.gethostname()
        assert host.kernel == os.uname().release
        assert host.architecture == os.uname().machine
        assert host.cpus_online == os.cpu_count()
        assert host.cpus_allowed == len(os.sched_getaffinity(0))
        assert host.memory_total == psutil.virtual_memory().total
        assert host.uid == os.geteuid()
        own = next(p for p in host.processes if p.pid == os.getpid())
        assert own.ppid == os.getppid()
        assert list(own.cmdline) == psutil.Process().cmdline()
        network = facts[Network]
        assert {i.name for i in network.interfaces} == set(os.listdir("/sys/class/net")) - {"bonding_masters"}
        assert next(i for i in network.interfaces if i.name == "lo").ipv4 == ("127.0.0.1/8",)
        assert "127.0.0.1" in network.resolve["localhost"] or "::1" in network.resolve["localhost"]
        assert network.resolve["no-such-host.invalid"] == ()
        assert socket.gethostname() in network.resolve

    def test_the_checkpoint_folder(self, machine: LiveSource, tmp_path: Path) -> None:
        folder = str(tmp_path / "ckpt")
        found = known(storage(machine, folder))
        assert isinstance(found, Storage)
        checkpoint = found.checkpoint
        assert checkpoint is not None
        assert (checkpoint.exists, checkpoint.is_dir, checkpoint.writable) == (True, True, True)
        assert checkpoint.error is None
        assert checkpoint.space is not None
        assert checkpoint.space.total == os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize
        assert checkpoint.mount is not None
        assert folder.startswith(checkpoint.mount.point)

    def test_a_folder_that_is_not_there_yet_and_was_not_named(
        self, machine: LiveSource, tmp_path: Path
    ) -> None:
        (tmp_path / "link").symlink_to("ckpt")
        found = known(storage(machine, str(tmp_path / "link" / "run" / "1")))
        assert isinstance(found, Storage)
        checkpoint = found.checkpoint
        assert checkpoint is not None
        assert (checkpoint.exists, checkpoint.is_dir, checkpoint.writable) == (False, None, True)
        assert checkpoint.nearest == str(tmp_path / "link")
        assert checkpoint.space is not None
        assert checkpoint.space.path == str(tmp_path / "link")

    def test_a_file_is_no_folder(self, machine: LiveSource, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        facts = machine.path_facts(str(tmp_path / "file"))
        assert (facts.exists, facts.is_dir) == (True, False)

    def test_the_kernel_log_is_known_or_says_why_not(self, machine: LiveSource) -> None:
        log = machine.kernel_log()
        if isinstance(log, Known):
            assert log.source in ("/dev/kmsg", "dmesg", "journalctl -k")
            assert log.value
        else:
            assert log.reason.startswith("the kernel log could not be read: ")
            assert log.enable

    def test_nothing_stays_behind(self) -> None:
        source = LiveSource(seconds=LONG)
        pids = [p for a in source._asked.values() if (p := a._child.pid) is not None]
        source.close()
        until = time.monotonic() + 30
        while any(psutil.pid_exists(p) for p in pids) and time.monotonic() < until:
            time.sleep(0.05)
        assert not [p for p in pids if psutil.pid_exists(p)]

    def test_only_what_is_asked_is_started(self) -> None:
        source = LiveSource(ask=())
        assert source._asked == {}
        assert source.nvml() == Unknown("NVML was not asked")
        assert source.stack() == Unknown("the Python environment was not asked")
        assert source.kernel_log() == Unknown("the kernel log was not asked")
        assert isinstance(source.statvfs(), Unknown)
        assert source.path_facts("/tmp").exists is None
        assert source.openable("/dev/null") is None
        assert dict(source.units()) == {}
        source.close()

    def test_the_rank_is_that_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")
        monkeypatch.setenv("ODD", os.fsdecode(b"\xff"))
        source = LiveSource(ask=())
        assert (source.manifest.rank, source.manifest.world_size, source.manifest.recorded) == (3, 8, False)
        env = source.env()
        assert isinstance(env, Known)
        json.dumps(dict(env.value)).encode()
        assert env.value["ODD"] == "?"
        source.close()

    def test_a_python_that_is_none(self) -> None:
        source = LiveSource(python="/no/such/python", seconds=LONG, ask={STACK})
        found = source.stack()
        assert isinstance(found, Unknown)
        assert "/no/such/python" in found.reason
        source.close()

    @pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has an NVIDIA driver")
    def test_no_driver(self) -> None:
        source = LiveSource(seconds=LONG, ask={NVML})
        found = source.nvml()
        assert isinstance(found, Known)
        assert found.value["error"] == "LibraryNotFound"
        source.close()


def test_importing_it_is_light() -> None:
    program = "import sys, fsdp_doctor.facts.live; print([m for m in ('torch', 'pynvml', 'psutil', 'rich') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=True
    )
    assert done.stdout.strip() == "[]"


class TestSystemChild:
    def test_a_dead_file_server_holds_up_its_own_answer_only(self, tmp_path: Path) -> None:
        asked = child("paths", "/dead/ckpt", str(tmp_path), seconds=5, before=HANGING_STAT)
        found = asked.answers("path")
        assert list(found) == [str(tmp_path)]
        assert asked.outcome().timed_out

    def test_a_folder_that_may_not_be_entered(self, tmp_path: Path) -> None:
        refuse = """
            import errno, os
            real = os.stat
            def stat(path, *args, **kwargs):
                if str(path).endswith("/secret/run"):
                    raise PermissionError(errno.EACCES, "Permission denied")
                return real(path, *args, **kwargs)
            os.stat = stat
        """
        (tmp_path / "secret").mkdir()
        (facts,) = child("paths", f"{tmp_path}/secret/run", before=refuse).answers("path").values()
        assert isinstance(facts, dict)
        assert (facts["exists"], facts["error"], facts["nearest"]) == (
            None,
            "Permission denied",
            f"{tmp_path}/secret",
        )

    def test_device_nodes(self, tmp_path: Path) -> None:
        refuse = """
            import errno, os
            real = os.open
            def open_(path, *args, **kwargs):
                if str(path) == "/dev/zero":  # as a device control group does
                    raise PermissionError(errno.EPERM, "Operation not permitted")
                return real(path, *args, **kwargs)
            os.open = open_
        """
        found = child("nodes", "/dev/null", "/dev/zero", str(tmp_path / "none"), before=refuse).answers(
            "node"
        )
        assert found == {"/dev/null": True, "/dev/zero": False, str(tmp_path / "none"): False}

    def test_the_log_by_the_first_reader_that_may(self, tmp_path: Path) -> None:
        closed = "import os; os.environ['PATH'] = {!r}\n" + textwrap.dedent("""
            import errno
            real = os.open
            def open_(path, *args, **kwargs):
                if str(path) == "/dev/kmsg":
                    raise PermissionError(errno.EPERM, "Operation not permitted")
                return real(path, *args, **kwargs)
            os.open = open_
        """)
        before = closed.format(str(tmp_path))
        reasons = child("log", before=before).answers("unreadable")
        assert reasons == {"log": "/dev/kmsg: Operation not permitted; no dmesg; no journalctl"}
        program(
            tmp_path / "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
        )
        program(tmp_path / "journalctl", "echo 'Sep 14 08:30:00 h kernel: Linux version 6'")
        assert child("log", before=before).answers("log") == {
            "journalctl -k": "Sep 14 08:30:00 h kernel: Linux version 6\n"
        }
        program(tmp_path / "dmesg", "echo '[    0.000000] Linux version 5'")
        assert child("log", before=before).answers("log") == {"dmesg": "[    0.000000] Linux version 5\n"}

    def test_the_journal_makes_up_for_a_ring_that_was_overwritten(self, tmp_path: Path) -> None:
        before = f"import os; os.environ['PATH'] = {str(tmp_path)!r}\n" + textwrap.dedent("""
            real = os.open
            os.open = lambda path, *a, **k: real("/nowhere" if str(path) == "/dev/kmsg" else path, *a, **k)
        """)
        program(tmp_path / "dmesg", "echo '[  900.000000] late'")
        program(tmp_path / "journalctl", "echo 'Sep 14 08:30:00 h kernel: Linux version 6'")
        assert list(child("log", before=before).answers("log")) == ["dmesg", "journalctl -k"]
        program(tmp_path / "journalctl", "echo 'Sep 14 08:30:00 h kernel: late as well'")
        assert list(child("log", before=before).answers("log")) == ["dmesg"]

    def test_units(self, tmp_path: Path) -> None:
        program(
            tmp_path / "systemctl",
            "printf 'Id=a.service\\nLoadState=loaded\\nActiveState=active\\n\\n"
            "Id=b.service\\nLoadState=not-found\\nActiveState=inactive\\n'",
        )
        before = f"import os; os.environ['PATH'] = {str(tmp_path)!r}\n"
        assert child("units", "a", "b", before=before).answers("unit") == {"a": "active", "b": "not-found"}
        (tmp_path / "systemctl").unlink()
        assert child("units", "a", before=before).answers("unit") == {}


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def impostors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of children that the live source starts in place of its own."""
    folder = tmp_path / "children"
    folder.mkdir()
    monkeypatch.setattr(live, "CHILDREN", folder)
    for name in ("system_child.py", "nvml_child.py", "torch_child.py"):
        (folder / name).write_text("")
    return folder


class TestHangs:
    def test_a_path_without_an_answer(self, impostors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "PATH_SECONDS", 3.0)
        (impostors / "system_child.py").write_text(
            "import sys, time\n"
            "if sys.argv[1] == 'paths':\n"
            '    print(\'["path", "/", {"exists": true, "nearest": "/", "space": {"f_frsize": 1, "f_blocks": 9}}]\', flush=True)\n'
            "    time.sleep(600)\n"
        )
        source = LiveSource(seconds=LONG, checkpoint="/dead/ckpt", ask={SYSTEM})
        facts = source.path_facts("/dead/ckpt")
        assert facts.exists is None
        assert facts.error is not None
        assert facts.error.startswith("no answer in ")
        space = source.statvfs()
        assert isinstance(space, Known)
        assert space.value == {"/": {"f_frsize": 1, "f_blocks": 9}}
        assert source.path_facts("/").exists is True
        source.close()

    def test_answers_that_are_none(self, impostors: Path) -> None:
        (impostors / "system_child.py").write_text(
            'print(\'nonsense\\n[1]\\n["path", "/", 3]\\n["path", "/tmp", {"space": []}]\\n'
            '["log", "x", null]\\n["unit", "u", 1]\\n["node", "/dev/null", "yes"]\\n{}\\n[[[\')'
        )
        source = LiveSource(seconds=LONG, ask={SYSTEM})
        assert source.path_facts("/").exists is None
        assert isinstance(source.statvfs(), Unknown)
        assert isinstance(source.kernel_log(), Unknown)
        assert dict(source.units()) == {}
        assert source.openable("/dev/null") is None
        assert isinstance(source.net(), Known)
        source.close()

    def test_the_deadline_of_all(self, impostors: Path) -> None:
        (impostors / "nvml_child.py").write_text("import time; time.sleep(600)")
        (impostors / "torch_child.py").write_text("import time; time.sleep(600)")
        source = LiveSource(seconds=1.0)
        assert isinstance(source.nvml(), Unknown)
        assert isinstance(source.stack(), Unknown)
        assert isinstance(known(storage(source)), Storage)
        source.close()


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[str]:
    """A file system whose server never answers, as a mount of NFS after its server died."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    point = tmp_path / "dead"
    point.mkdir()
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if libc.mount(b"dead", bytes(point), b"fuse.dead", 0, options) != 0:
        os.close(server)
        pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield str(point)
    finally:
        os.close(server)  # whoever waits for an answer gets an error
        libc.umount2(bytes(point), 2)


def test_a_file_system_that_is_dead(dead_mount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATH_SECONDS", 3.0)
    monkeypatch.setenv("HOME", f"{dead_mount}/home")
    checkpoint = f"{dead_mount}/ckpt"
    source = LiveSource(seconds=LONG, checkpoint=checkpoint, ask={SYSTEM})
    facts = collect(source, (Host, Storage), checkpoint=checkpoint)
    found = facts[Storage].checkpoint
    assert found is not None
    assert (found.exists, found.writable, found.space) == (None, None, None)
    assert (found.error or "").startswith("no answer in ")
    assert found.mount is not None
    assert found.mount.fstype == "fuse.dead"
    assert "/" in facts[Storage].spaces
    assert facts[Host].home_writable is None
    assert isinstance(source.read(f"{dead_mount}/.nccl.conf"), Unknown)
    source.close()


def test_addresses() -> None:
    addresses = interface_addresses()["lo"]
    assert isinstance(addresses, dict)
    assert "127.0.0.1/8" in addresses["ipv4"]


@pytest.mark.parametrize(
    ("address", "mask", "text"),
    [
        ("10.0.0.1", "255.255.240.0", "10.0.0.1/20"),
        ("fe80::1%eth0", "ffff:ffff:ffff:ffff::", "fe80::1/64"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "garbage", "10.0.0.1"),
    ],
)
def test_lengths(address: str, mask: str | None, text: str) -> None:
    assert with_length(address, mask) == text
