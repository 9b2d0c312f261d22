"""Ranks that did not run through: never there, dead, hung, or two on one GPU."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import (
    FACTS,
    RERUN,
    early,
    evidence,
    measurement,
    rank_words,
    subject,
    unfinished,
    who,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Row, fail, ok, skip
from fsdp_doctor.subjects.fabric import DIED, DUPLICATE_GPU, HUNG, MISSING, Fabric, Failure
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult


def _of(fabric: Fabric, kind: str) -> tuple[Failure, ...]:
    return tuple(f for f in fabric.failures if f.kind == kind)


def _ran(probe: ProbeResult, fabric: Fabric, none: str) -> Finding:
    """A pass where every rank ran through; where one did not, others may hide behind its end."""
    if not probe.world_size or fabric.finished < probe.world_size:
        return skip(f"not known: {unfinished(probe, fabric)}", enable=RERUN)
    return ok(f"{none}; {fabric.finished} of {probe.world_size} ranks ran through the probe")


def _victims(failure: Failure) -> str:
    if not failure.victims:
        return ""
    verb = "was" if len(failure.victims) == 1 else "were"
    return f"; {rank_words(failure.victims)} {verb} stopped or left waiting by it"


def _row(failure: Failure) -> Row:
    return Row.START if early(failure.stage) else Row.NCCL


@check("PRB002", Row.START, needs=FACTS, tags=("probe", "ranks"), cost=Cost.MINUTES)
def missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank of the job never reported to the probe.

    What: Compares the ranks that reported with the world size that the job was started with.
    Why: FSDP's first collective needs every rank. The ranks that are there wait for the absent one until
        the rendezvous or the process group times out, and the error names one of them.
    Fix: Look at the launcher's output and at the node of the missing rank: it did not start, or it cannot
        reach MASTER_ADDR:MASTER_PORT.
    Sources: PyTorch documentation, torch.distributed.elastic rendezvous.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for failure in _of(fabric, MISSING):
        here = probe.world_size - len(failure.ranks)
        yield fail(
            f"{rank_words(failure.ranks)} of {probe.world_size} never reported: {failure.words}",
            f"{probe.world_size} ranks; {here} are there",
            subject=subject(probe, failure.ranks),
            row=Row.START,
            fix=Fix(
                "Look at the launcher's output for these ranks, and from their node try the rendezvous "
                "address and port (a firewall, another MASTER_ADDR, a node that is down)"
            ),
        )
    if not _of(fabric, MISSING):
        yield _ran(probe, fabric, "no rank is missing")


@check("PRB003", Row.NCCL, needs=FACTS, tags=("probe", "ranks"), cost=Cost.MINUTES)
def died(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank died during the probe.

    What: Finds the rank that ended by a signal or by an error of its own, apart from ranks that only lost
        their partner.
    Why: The survivors of a dead FSDP rank report "connection reset" or a timeout, and torchrun's root
        cause is often one of them. The rank named here is the one to look at.
    Fix: Act on its signal or exception: SIGKILL points to the OOM killer or a memory limit, SIGBUS to a
        full /dev/shm, an exception to its own text.
    Sources: signal(7); PyTorch documentation, torch.distributed.elastic errors; NCCL user guide,
        troubleshooting.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for failure in _of(fabric, DIED):
        yield fail(
            f"{who(probe, failure.ranks)} died in stage {failure.stage}: {failure.words}{_victims(failure)}",
            "every rank runs through the probe",
            subject=subject(probe, failure.ranks),
            row=_row(failure),
            fix=_death_fix(failure.words),
            evidence=evidence(failure.evidence),
        )
    if not _of(fabric, DIED):
        yield _ran(probe, fabric, "no rank died of itself")


def _death_fix(words: str) -> Fix:
    if "SIGKILL" in words:
        return Fix(
            "Look for the OOM killer in the kernel log, and raise the container's or job's memory limit",
            "dmesg -T | grep -iE 'out of memory|oom-kill' | tail",
        )
    if "SIGBUS" in words:
        return Fix("Give the container more shared memory: --shm-size=16g or --ipc=host", "df -h /dev/shm")
    if "out of memory" in words.lower():
        return Fix("Free the GPU: another process holds its memory", "nvidia-smi")
    return Fix(
        "Fix what its error says; with NCCL_DEBUG=INFO the backend says more",
        "NCCL_DEBUG=INFO fsdp-doctor probe",
    )


@check("PRB004", Row.NCCL, needs=FACTS, tags=("probe", "ranks"), cost=Cost.MINUTES)
def hung(facts: Facts, options: Options) -> Iterator[Finding]:
    """A rank stood still until the probe's deadline.

    What: Names the ranks that were still in an earlier stage than the others when the time was up, and
        what they were doing.
    Why: All ranks of an FSDP step wait for the slowest. A rank that stands still here will make the first
        step end in a watchdog timeout that accuses the others.
    Fix: Look at the stack of the named rank. Where all ranks stand in their first collective, they found
        each other but their data connections do not pass: interface or firewall.
    Sources: NCCL user guide, environment variables (NCCL_SOCKET_IFNAME); PyTorch documentation,
        torch.distributed debugging.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for failure in _of(fabric, HUNG):
        alone = len(failure.ranks) < probe.world_size
        advice = (
            "Look at the stack of the rank and at its node: CPU, storage and GPU of that rank alone"
            if alone
            else "Name the interface between the nodes in NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, and open "
            "the firewall between them for all ports"
        )
        yield fail(
            f"{who(probe, failure.ranks)} hung: {failure.words}{_victims(failure)}",
            f"every rank finishes within {probe.plan.deadline_seconds:.0f} s",
            subject=subject(probe, failure.ranks),
            row=_row(failure),
            fix=Fix(advice, _look(probe, failure) if alone else "ip -br addr"),
            evidence=evidence(failure.evidence),
        )
    if not _of(fabric, HUNG):
        yield _ran(probe, fabric, "no rank hung on its own")


def _look(probe: ProbeResult, failure: Failure) -> str | None:
    """The command that shows the stack of the first rank, where its process id is known."""
    found = measurement(probe, failure.ranks[0]) if failure.ranks else None
    return f"py-spy dump --pid {found.pid}" if found is not None and found.pid is not None else None


@check("PRB005", Row.START, needs=FACTS, tags=("probe", "ranks", "nccl"), cost=Cost.MINUTES)
def duplicate_gpu(facts: Facts, options: Options) -> Iterator[Finding]:
    """Two ranks use the same GPU.

    What: Recognises NCCL's "Duplicate GPU detected" and ranks that report the same GPU UUID.
    Why: NCCL refuses two ranks on one GPU, so that FSDP's first collective raises ncclInvalidUsage on all
        of them, mostly because a script never calls torch.cuda.set_device(LOCAL_RANK).
    Fix: Pin every process to its own GPU before the first CUDA call, and start no more ranks than GPUs.
    Sources: NCCL source, init.cc; PyTorch documentation, torch.cuda.set_device.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    for failure in _of(fabric, DUPLICATE_GPU):
        yield fail(
            f"{rank_words(failure.ranks)} use one GPU: {failure.words}{_victims(failure)}",
            "one GPU per rank",
            subject=subject(probe, failure.ranks),
            row=Row.START,
            fix=Fix(
                "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything else touches "
                "CUDA, and set --nproc-per-node to the number of visible GPUs",
                "nvidia-smi -L; echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES",
            ),
            evidence=evidence(failure.evidence),
        )
    if _of(fabric, DUPLICATE_GPU):
        return
    if probe.device != "cuda":
        yield skip("the ranks ran on CPU and use no GPU", enable="run the probe on GPUs")
    elif any(r.gpu_uuid is None for r in probe.ranks) and probe.world_size > 1:
        yield skip("not every rank could say which GPU it uses")
    else:
        yield _ran(probe, fabric, "no GPU is used twice")
