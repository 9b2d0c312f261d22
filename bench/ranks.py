"""Gathering and comparing 1,024 ranks over real sockets: seconds, and peak memory of rank 0.

Rank 0 is the real one; the others are simulated by two processes that speak the protocol, with digests and
results of a healthy machine. The clock runs from the first connection to the judged job.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.clock import PINGS
from fsdp_doctor.ranks.wire import Frames, Message

ROOT = Path(__file__).parents[1]
WORLD, PER_HOST, PROCESSES = 1024, 8, 2
TOKEN = "bench"
SECONDS, MEBIBYTES = 5.0, 500


# ----------------------------------------------------------------------------------- simulated ranks
def template() -> tuple[dict[str, object], list[str]]:
    """The digest and the results of a healthy machine, as they are sent."""
    from fixtures import machines
    from fixtures.memory import facts_of, rank_set
    from fsdp_doctor.engine.options import Options
    from fsdp_doctor.engine.registry import registry
    from fsdp_doctor.engine.runner import run_checks
    from fsdp_doctor.ranks.encode import digest_to_json, results_to_json
    from fsdp_doctor.subjects.rank_set import RankSet

    job = machines.two_nodes()
    checks = [c for c in registry().checks if RankSet not in c.needs]
    kinds = tuple({k: None for c in checks for k in (*c.needs, *c.uses)})
    results = run_checks(checks, facts_of(job.ranks[0], kinds), Options())
    host = job.ranks[0].host
    digest = digest_to_json(rank_set(job).ranks[0])
    assert isinstance(digest, dict)
    digest["dists"] = {f"distribution-{i}": f"{i}.{i % 7}.0" for i in range(250)} | digest["dists"]
    return digest, results_to_json(results, host, 0)


def payload(digest: dict[str, object], results: list[str], rank: int) -> bytes:
    host = f"node-{rank // PER_HOST:03d}"
    own = {
        "rank": rank,
        "host": host,
        "boot_id": f"boot-{host}",
        "local_rank": rank % PER_HOST,
        "gpu": {"uuid": f"GPU-{rank}"},
    }
    offer = {"port": None, "addresses": [f"10.30.{rank // PER_HOST}.11"]}
    own |= {"world_size": WORLD, "local_world_size": PER_HOST}
    mine = [t.replace("bdf", f"bdf {rank}") for t in results]
    report = {
        "type": "report",
        "digest": {**digest, **own},
        "offer": offer,
        "results": mine,
        "clock_offset": 0.001,
    }
    return wire.pack(report)


async def rank(number: int, port: int, key: bytes, report: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    nonce = wire.read_banner(await reader.readexactly(wire.BANNER_SIZE))
    hello: Message = {
        "type": "hello", "rank": number, "host": f"node-{number // PER_HOST:03d}", "id": str(number), "nonce": "n",
        "proof": wire.proof(key, "hello", nonce, "n", number),
    }  # fmt: skip
    writer.write(wire.pack(hello))
    frames, pings = Frames(), PINGS
    while data := await reader.read(1 << 16):
        for message in frames.feed(data):
            kind = message.get("type")
            if kind == "verdict":
                writer.close()
                return
            if kind == "ask":
                writer.write(wire.pack({"type": "reply", "number": message["number"], "unreached": []}))
            elif pings:
                pings -= 1
                writer.write(wire.pack({"type": "clock", "number": pings}))
            elif report:
                writer.write(report)
                report = b""
        await writer.drain()


async def ranks(numbers: list[int], port: int) -> None:
    digest, results = template()
    key = wire.secret(TOKEN, None, port)
    reports = {n: payload(digest, results, n) for n in numbers}
    size = sum(map(len, reports.values())) / len(reports)
    print(f"{len(results)} results, {size / 1024:.0f} KiB a rank", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(rank(n, port, key, reports[n]) for n in numbers))


# --------------------------------------------------------------------------------------------- rank 0
def peak_mebibytes() -> float:
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def main() -> int:
    from fsdp_doctor.cli.jobwide import Job, is_jobwide
    from fsdp_doctor.cli.join_options import Joining
    from fsdp_doctor.cli.joining import Joined
    from fsdp_doctor.cli.judging import Judgement, Work
    from fsdp_doctor.engine.merge import Merger, node_scoped
    from fsdp_doctor.engine.options import Options
    from fsdp_doctor.engine.registry import registry
    from fsdp_doctor.findings import Status
    from fsdp_doctor.ranks.context import Context

    checks = registry().checks
    port = 23000 + os.getpid() % 5000
    children = []
    for part in range(PROCESSES):
        numbers = [str(r) for r in range(1, WORLD) if r % PROCESSES == part]
        argv = [sys.executable, "-m", "bench.ranks", str(port), ",".join(numbers)]
        children.append(
            subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    try:
        for child in children:
            assert child.stdout is not None
            print("simulated ranks are ready:", child.stdout.readline().strip())
        before = peak_mebibytes()
        where = Context(0, WORLD, "127.0.0.1", port, local_world_size=PER_HOST)
        judgement = Judgement(
            Merger(node_scoped([c for c in checks if not is_jobwide(c)])), Job(checks, None, False)
        )
        with Joined(
            where, Joining("join", None, TOKEN), began=time.monotonic(), budget=60.0, deadline=None
        ) as joined:
            began, busy = time.perf_counter(), time.process_time()
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            unjudged = joined.gather(judgement, Work(checks, Options(), joined=True))
            results = judgement.merger.results()
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
            joined.finish(0)
        peak = peak_mebibytes()
        for child in children:
            child.wait(30)
    finally:
        for child in children:
            child.kill()
            child.wait()
    for result in results:
        if result.status is Status.FAIL:
            print(result.code, result.found[:200])
    here = len(judgement.ranks)
    failures = sum(r.status is Status.FAIL for r in results)
    print(
        f"{here} of {WORLD} ranks gathered and compared: {len(results)} results, {failures} failures, {len(unjudged)} unjudged"
    )
    print(
        f"{seconds:.2f} s (bound {SECONDS:.0f} s; {busy:.2f} s of them on a processor), peak {peak:.0f} MiB (bound {MEBIBYTES} MiB; {before:.0f} before the ranks came)"
    )
    ok = here == WORLD and seconds <= SECONDS and peak <= MEBIBYTES
    print(json.dumps({"ranks": here, "seconds": round(seconds, 3), "peak_mib": round(peak), "ok": ok}))
    assert threading.active_count() < 10
    return 0 if ok else 1


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(ranks([int(n) for n in sys.argv[2].split(",")], int(sys.argv[1])))
        sys.exit(0)
    sys.exit(main())
