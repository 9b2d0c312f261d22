"""How often a probe names the right rank or link: probes with a fault each, one JSON line per probe.

Ranks of most faults are forked from one process that has imported torch, to save time; what they run is the
worker of the product. Ranks that sleep for good, are killed or stopped are started by torch elastic as the
command does it, since how their processes end is what counts. Ranks of several hosts are forked into network
namespaces, each with a host name of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from bench.faults import HEALTHY, HEALTHY_HOSTS, SLOW, Fault, loaded, random_step
from fsdp_doctor.codec import whole_json
from fsdp_doctor.probe.assemble import Ending, assemble
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.launch import PARENT, job
from fsdp_doctor.probe.planning import GLOO, Effort, plan
from fsdp_doctor.probe.tournament import tournament
from fsdp_doctor.probe.verdicts import conclude, recheck
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult
from tests.support import probing
from tests.support.cluster import Cluster

RANKS = 4
LIMIT = 60.0
NEW_NETWORK, NEW_NAMES = 0x40000000, 0x04000000
"""CLONE_NEWNET and CLONE_NEWUTS."""


def localise(faults: Sequence[Fault], runs: int, healthy: int, target: Path) -> None:
    """Run so many probes of each fault in a random order and append what each said to a file."""
    chosen = [f for f in faults for _ in range(healthy if f in (HEALTHY, HEALTHY_HOSTS) else runs)]
    random.shuffle(chosen)
    with contextlib.ExitStack() as stack:
        cluster = None
        if any(f.network for f in chosen):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = stack.enter_context(Cluster(folder, tuple(f"node-{i}" for i in range(RANKS))))
        for fault in chosen:
            told = once(fault, cluster)
            with target.open("a") as file:
                file.write(json.dumps(told) + "\n")
            if not told["right"] or told["warned"] or told["broken"]:
                print(json.dumps(told), flush=True)


def once(fault: Fault, cluster: Cluster | None) -> dict[str, object]:
    """One probe with a random victim; what it said, as one line of the record."""
    victims = random.sample(range(RANKS), 2)
    began, load = time.monotonic(), os.getloadavg()[0]
    if fault.sabotage:
        made = f"{fault.sabotage}:{victims[0]}:{random_step()}"
        result = probing.probe(RANKS, made)
    elif fault.network and cluster is not None:
        result = _between_hosts(fault, victims, cluster)
    else:
        result = forked(plan(GLOO, RANKS, Effort.SHORT), fault, victims[0])
    found = conclude(result)
    said = fault.judge(found, victims)
    healthy = fault in (HEALTHY, HEALTHY_HOSTS)
    words = [f"{c.kind} {c.ranks} {c.ratio:.2f}x {'fails' if c.fails else 'warns'}" for c in found.culprits]
    words += [f"{f.kind} {f.ranks} {f.stage}: {f.words}" for f in found.failures]
    words += [f"undecided {c.kind} {c.ranks} {c.ratio:.2f}x" for c in found.undecided]
    return {
        "fault": fault.name,
        "victims": victims,
        "right": not found.culprits and not found.failures if healthy else said.right,
        "warned": said.others_warned,
        "failed": said.others_failed,
        "broken": bool(found.failures) and not fault.sabotage,
        "said": words,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "load": round(load, 1),
        "busy": found.busy,
        "cores": os.cpu_count(),
        "torch": result.torch,
        "python": platform.python_version(),
    }


def _between_hosts(fault: Fault, victims: Sequence[int], cluster: Cluster) -> ProbeResult:
    names = [cluster.hosts[v] for v in victims]
    try:
        if fault.network == "nic":
            cluster.slow_nic(names[0], SLOW)
        elif fault.network == "way":
            cluster.slow_way(names[0], names[1], SLOW)
        return forked(plan(GLOO, RANKS, Effort.SHORT), fault, victims[0], cluster)
    finally:
        cluster.mend()


def forked(made: ProbePlan, fault: Fault, victim: int, cluster: Cluster | None = None) -> ProbeResult:
    """One probe with forked ranks, on this host or one on each host of a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-bench-"))
    try:
        more: dict[str, object] = {}
        if cluster is not None:
            nodes = {host: [i] for i, host in enumerate(cluster.hosts)}
            more = {"rounds": [r.pairs for r in tournament(nodes)], "most_local": 1}
        path = folder / "job.json"
        path.write_text(json.dumps(job(made, RANKS, folder, **more)))
        port = _free_port()
        pids = [_fork(r, path, port, fault if r == victim else HEALTHY, cluster) for r in range(RANKS)]
        journals = [Journal(folder, r) for r in range(RANKS)]
        try:
            _attend(journals, made, folder)
        finally:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
        return assemble(made, journals, [Ending(r) for r in range(RANKS)], device="cpu")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
    return port


def _fork(rank: int, path: Path, port: int, fault: Fault, cluster: Cluster | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        address = "127.0.0.1"
        if cluster is not None:
            address = cluster.address(cluster.hosts[0])
            _move(cluster, cluster.hosts[rank])
        local = 0 if cluster is not None else rank
        os.environ.update({PARENT: str(parent), "RANK": str(rank), "WORLD_SIZE": str(RANKS)})
        os.environ.update(LOCAL_RANK=str(local), MASTER_ADDR=address, MASTER_PORT=str(port))
        fault.inject()
        loaded("main").main(str(path))  # type: ignore[attr-defined]
    finally:
        os._exit(1)


def _move(cluster: Cluster, host: str) -> None:
    """Bring this process onto a host of the cluster."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{cluster.namespace(host)}") as file:
        if libc.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    if libc.unshare(NEW_NAMES):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(host)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


def _attend(journals: Sequence[Journal], made: ProbePlan, folder: Path) -> None:
    until, answered = time.monotonic() + LIMIT, False
    while time.monotonic() < until and not all(j.done or j.error for j in journals):
        for j in journals:
            j.poll()
        if not answered and all(j.looked for j in journals):
            answered = True
            first = assemble(made, journals, [Ending(r) for r in range(RANKS)], device="cpu")
            part = folder / "again.part"
            part.write_text(json.dumps(whole_json(recheck(first))))
            part.replace(folder / "again.json")
        time.sleep(0.02)
