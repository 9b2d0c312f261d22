"""A small cluster on one machine: network namespaces as hosts, each with its own name, addresses and /etc/hosts.

    with Cluster(tmp_path, ("node-a", "node-b")) as cluster:
        cluster.firewall("node-b", "tcp dport 32768-60999 tcp flags & (syn|ack) == syn drop")
        subprocess.run([*cluster.enter("node-a"), "ping", "node-b"])

Needs root, `ip` and a kernel with veth and bridges; `why_not` says what is missing. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType

NETWORK = "10.77.0"
ETC = Path("/etc/netns")
BURST = "128kb"
"""Bytes that a slow adapter passes at once: more than the largest packet of an adapter without a wire (64 KiB)."""
ENTER = (
    'printf %s "$1" > /proc/sys/kernel/hostname; mount --bind "$2" /proc/sys/kernel/random/boot_id; '
    'if [ -n "$3" ]; then mount --bind "$4" "$3"; fi; shift 4; exec "$@"'
)


def _bucket(rate: str) -> tuple[str, ...]:
    return "tbf", "rate", rate, "burst", BURST, "latency", "200ms"


def _run(*argv: str, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=check, **more)  # type: ignore[call-overload,no-any-return]


@cache
def why_not(firewall: bool = False) -> str | None:
    """What keeps this machine from having a cluster; None where nothing does."""
    needed = ["ip", "unshare", "mount", *(["nft"] if firewall else [])]
    absent = [n for n in needed if shutil.which(n) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    if os.geteuid() != 0:
        return "needs root"
    name = f"fsd{os.getpid()}try"
    tries = [
        ("ip", "netns", "add", name),
        ("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
        ("ip", "-n", name, "link", "add", "br0", "type", "bridge"),
        ("ip", "netns", "exec", name, "unshare", "-u", "true"),
    ]
    if firewall:
        tries.append(
            (
                "ip",
                "netns",
                "exec",
                name,
                "nft",
                "add table inet fw { chain in { type filter hook input priority 0; }; }",
            )
        )
    try:
        for argv in tries:
            done = _run(*argv, check=False)
            if done.returncode:
                return f"{' '.join(argv)}: {done.stderr.strip()[:200]}"
    finally:
        _run("ip", "netns", "del", name, check=False)
    return None


class Cluster:
    """Hosts on one bridge. Leave the `with` block to end their processes and remove them."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self.folder = folder
        self.hosts = tuple(hosts)
        self._prefix = f"fsd{os.getpid()}"
        self._mounts: dict[str, tuple[str, str]] = {}

    def namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self.hosts.index(host) + 1}"

    def __enter__(self) -> Cluster:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        table = "127.0.0.1 localhost\n" + "".join(f"{self.address(h)} {h}\n" for h in self.hosts)
        for i, host in enumerate(self.hosts):
            name, port = self.namespace(host), f"port{i}"
            _run("ip", "netns", "add", name)
            _run(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                switch,
            )
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            (ETC / name).mkdir(parents=True)
            (ETC / name / "hosts").write_text(table)
            (self.folder / f"boot.{host}").write_text(f"{uuid.uuid4()}\n")

    def _remove(self) -> None:
        for host in (*self.hosts, "switch"):
            name = self.namespace(host)
            for number in (signal.SIGTERM, signal.SIGKILL):
                self._signal(name, number)
            _run("ip", "netns", "del", name, check=False)
            shutil.rmtree(ETC / name, ignore_errors=True)
        if ETC.is_dir() and not any(ETC.iterdir()):
            ETC.rmdir()

    def _signal(self, name: str, number: signal.Signals) -> None:
        """Signal every process of a namespace and give them a moment to go."""
        until = time.monotonic() + 3.0
        while pids := _run("ip", "netns", "pids", name, check=False).stdout.split():
            for pid in pids:
                for one in (number, signal.SIGCONT):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), one)
            if time.monotonic() > until:
                return
            time.sleep(0.1)

    def enter(self, host: str) -> list[str]:
        """Words before a command that is to run on a host."""
        point, source = self._mounts.get(host, ("", ""))
        boot = str(self.folder / f"boot.{host}")
        return [
            "ip", "netns", "exec", self.namespace(host),
            "unshare", "-u", "sh", "-c", ENTER, "sh", host, boot, point, source,
        ]  # fmt: skip

    def mount(self, host: str, point: Path, source: Path) -> None:
        """Let a folder be another one on one host."""
        self._mounts[host] = (str(point), str(source))

    def resolve(self, host: str, name: str, address: str) -> None:
        """Let a name have another address on one host."""
        table = ETC / self.namespace(host) / "hosts"
        kept = [line for line in table.read_text().splitlines() if name not in line.split()]
        table.write_text("\n".join([*kept, f"{address} {name}", ""]))

    def bridge(self, host: str, name: str, address: str) -> None:
        """Give a host a bridge of its own, as docker makes one, with a port so that it has a carrier."""
        inside = self.namespace(host)
        _run("ip", "-n", inside, "link", "add", name, "type", "bridge")
        _run("ip", "-n", inside, "link", "add", "vin", "type", "veth", "peer", "name", "vout")
        _run("ip", "-n", inside, "link", "set", "vin", "master", name, "up")
        _run("ip", "-n", inside, "link", "set", "vout", "up")
        _run("ip", "-n", inside, "addr", "add", address, "dev", name)
        _run("ip", "-n", inside, "link", "set", name, "up")

    def slow_nic(self, host: str, rate: str) -> None:
        """Let a host's adapter carry no more than `rate` each way, as "200mbit"."""
        port = f"port{self.hosts.index(host)}"
        for place, device in ((self.namespace(host), "eth0"), (self.namespace("switch"), port)):
            _run("tc", "-n", place, "qdisc", "replace", "dev", device, "root", *_bucket(rate))

    def slow_way(self, source: str, target: str, rate: str) -> None:
        """Let what goes from one host to one other go no faster than `rate`; the way back stays as it is."""
        place, device = self.namespace(source), "eth0"
        others = ("htb", "rate", "1000gbit", "quantum", "60000")
        _run(
            "tc",
            "-n",
            place,
            "qdisc",
            "replace",
            "dev",
            device,
            "root",
            "handle",
            "1:",
            "htb",
            "default",
            "1",
        )
        _run("tc", "-n", place, "class", "replace", "dev", device, "parent", "1:", "classid", "1:1", *others)
        # fmt: off
        _run("tc", "-n", place, "class", "replace", "dev", device, "parent", "1:", "classid", "1:2",
             "htb", "rate", rate, "burst", BURST, "quantum", "60000")
        _run("tc", "-n", place, "filter", "replace", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1",
             "u32", "match", "ip", "dst", f"{self.address(target)}/32", "flowid", "1:2")
        # fmt: on

    def mend(self) -> None:
        """Take every slow adapter and way back."""
        for i, host in enumerate(self.hosts):
            for place, device in ((self.namespace(host), "eth0"), (self.namespace("switch"), f"port{i}")):
                _run("tc", "-n", place, "qdisc", "del", "dev", device, "root", check=False)

    def firewall(self, host: str, rule: str) -> None:
        """Apply one rule to what comes to a host."""
        text = f"add table inet fw\nadd chain inet fw in {{ type filter hook input priority 0; }}\nadd rule inet fw in {rule}\n"
        _run("ip", "netns", "exec", self.namespace(host), "nft", "-f", "-", input=text)
