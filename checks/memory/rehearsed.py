"""Training scripts that were run as rank 0 of N."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import SHARE, TIGHT, WAYS, at, moment, saved, saving, short
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import (
    Confidence,
    Evidence,
    Finding,
    Fix,
    Row,
    Status,
    Subject,
    fail,
    info,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.memory_measured import MeasuredOom
from fsdp_doctor.subjects.rehearsal import Rehearsal
from fsdp_doctor.tables.units import memory_size as size

UNSAID = "The job itself may run: nothing is said of it before this is out of the way."
NOTHING_FETCHED = (
    "A rehearsal has no network: where compute nodes have none either, the job ends here too; where they "
    "have one, each of its ranks fetches."
)
UNJUDGED = (
    "operator", "time", "child", "torch", "network", "refused", "gpu", "accelerate", "program", "scheduler",
)  # fmt: skip
"""Kinds of problems that say nothing of the job itself."""
FIXES = {
    "script": "Correct the line that is named; --verbose shows the traceback",
    "early": "Give the arguments of a real run, with data for at least two steps",
    "operator": "Register a shape-only form of it (torch.library.register_fake), or rehearse on a GPU",
    "time": "Give more --deadline or a smaller data set, or look at the line where it stands",
    "network": "Name local folders of models and data: a rehearsal fetches nothing",
    "refused": "Rehearse without it, or on the GPUs themselves",
    "torch": "Name the Python of the training with --python",
    "program": "Run that program before, and rehearse with its files in place or where it is installed",
    "scheduler": "Give the command as the scheduler starts it: rehearse -- srun -N 2 … python train.py",
    "gpu": "Rehearse on fake tensors (--device fake), or on a machine with a GPU",
    "memory": "Take a smaller batch, shard over more ranks, or checkpoint activations",
    "accelerate": "Make the command one that `accelerate launch` of that environment takes",
}
SHOWN = 3


@check("MEM040", Row.START, needs=(Rehearsal,), tags=("memory", "script"), cost=Cost.SECONDS)
def cannot_be_rehearsed(facts: Facts, options: Options) -> Iterator[Finding]:
    """The script does not come to its optimizer steps.

    What: Runs the training script, unmodified, as rank 0 of N; reports its own line where it raises, what
        ended it before the first step, and what a rehearsal cannot do (an operator without a shape-only form,
        tensor, pipeline and context parallelism, compiled models, 8-bit optimizers, a network).
    Why: What fails on one rank fails on all of them, after they were paid for.
    Fix: Correct the line; give the script the arguments and the data of a real run.
    Sources: torch.testing._internal.distributed.fake_pg; torch._subclasses.fake_tensor.
    """
    found = facts[Rehearsal]
    problem = found.problem
    if found.oom is not None:
        yield skip(
            f"memory ran out after {found.steps_done} of {found.steps_wanted} optimizer steps: see MEM041"
        )
    elif problem is not None:
        shown = problem.kind not in UNJUDGED or problem.kind == "child"
        yield Finding(
            Status.ERROR if problem.kind in UNJUDGED else Status.FAIL,
            problem.text,
            f"{found.steps_wanted} optimizer steps of {found.script} as rank 0 of {found.world_size}",
            why=_why(problem.kind),
            subject=Subject(file=problem.file, line=problem.line),
            fix=Fix(FIXES.get(problem.kind, FIXES["script"])),
            evidence=(Evidence("traceback", problem.trace),) if problem.trace and shown else (),
        )
    elif found.steps_done < found.steps_wanted:
        yield warn(
            f"the script ended after {found.steps_done} of {found.steps_wanted} optimizer steps"
            + (f" and says: {found.said}" if found.said else ""),
            f"{found.steps_wanted} optimizer steps: optimizer states exist from the second on",
            subject=at(found.ended_at),
            fix=Fix("Give the script data and arguments for more steps, or ask for fewer with --steps"),
        )
    else:
        yield ok(f"{found.steps_done} optimizer steps as rank 0 of {found.world_size}")


def _why(kind: str) -> str:
    """In place of the check's own where the script may be right; "" elsewhere."""
    return NOTHING_FETCHED if kind == "network" else UNSAID if kind in UNJUDGED else ""


@check("MEM041", Row.OOM, needs=(Rehearsal,), tags=("memory", "script"), cost=Cost.SECONDS)
def rehearsed_job_does_not_fit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The rehearsed job does not fit the GPU.

    What: Compares the highest allocated bytes of the rehearsal, before the first step included, with a margin
        where they were not measured, the CUDA context and NCCL's buffers with the GPU's memory; reports where
        memory ran out in a rehearsal on a GPU.
    Why: A model that is moved to the GPU before it is sharded, or states that appear in the second step, end
        a job that seemed to fit.
    Fix: Shard before moving, checkpoint activations, take a smaller batch, or shard over more ranks.
    Sources: c10/cuda/CUDACachingAllocator.cpp; tables gpu_memory, gpu_overhead.
    """
    found = facts[Rehearsal]
    f = found.forecast
    if found.oom is not None:
        yield _ran_out(found, found.oom)
        return
    if f is None:
        done = found.steps_done
        yield skip(
            f"{done} of {found.steps_wanted} optimizer steps {'was' if done == 1 else 'were'} finished; "
            "what they allocate was not read (MEM040 says why)"
            if done
            else "no optimizer step was finished"
        )
        return
    if f.capacity is None:
        yield skip(f"no GPU was named; one rank needs {size(f.needed)}", enable='--gpu "H100 80GB"')
        return
    if not f.fits:
        yield fail(
            f"needs {size(f.needed)} per GPU (allocated {size(f.allocated)}); {moment(f)}",
            f"at most {size(f.capacity)} ({f.gpu})",
            fix=Fix(_advice(f)),
        )
    elif short(f):
        yield warn(
            f"needs {size(f.needed)} of {size(f.capacity)}; {moment(f)}",
            f"below {TIGHT:.0%} of the GPU",
            fix=Fix(_advice(f)),
            confidence=Confidence.MEDIUM,
        )
    else:
        yield ok(f"needs {size(f.needed)}; {f.gpu} has {size(f.capacity)}")


def _ran_out(found: Rehearsal, oom: MeasuredOom) -> Finding:
    """Memory ran out on the GPU of the rehearsal."""
    where = f"{oom.phase} of {oom.stage}" if oom.stage else "preparation, before the first step"
    figures = (
        (oom.requested, "more were asked for"),
        (oom.allocated, "allocated"),
        (oom.unallocated, "kept in free blocks"),
        (oom.free, "free"),
    )
    said = [f"{size(n)} {what}" for n, what in figures if n is not None]
    problem, f = found.problem, found.forecast
    before = "" if oom.stage or f is None else f"{_advice(f)}; "
    return Finding(
        Status.FAIL,
        f"memory ran out in {where}" + (f": {', '.join(said)}" if said else f": {oom.text}"),
        "room for every step" + (f" in {size(oom.total)}" if oom.total is not None else ""),
        subject=Subject(file=problem.file, line=problem.line) if problem is not None else Subject(),
        fix=Fix(
            f"{before}{FIXES['memory']}; on fake tensors a rehearsal says what is needed, and for what",
            "fsdp-doctor rehearse --device fake …",
        ),
        evidence=(Evidence("traceback", problem.trace),) if problem is not None and problem.trace else (),
    )


def _advice(f: MemoryForecast) -> str:
    if not f.peak.step:
        return "Shard the model before it is moved to the GPU: build it on the meta device or on the host"
    largest = max(f.peak.parts, key=lambda p: p.bytes).name if f.peak.parts else ""
    best = max((c for c in f.causes if c.name in WAYS), key=lambda c: saved(f, c), default=None)
    if best is not None and saved(f, best) >= SHARE * f.highest:
        return WAYS[best.name] + saving(f, best.name)
    if largest == "activations":
        return "Checkpoint the activations of the blocks, or take a smaller batch"
    if largest in ("parameters", "optimizer state"):
        return "Shard over more ranks, or keep parameters and optimizer state on the host"
    return "Take a smaller batch or shorter sequences, or finer units; dryrun says what each would save"


@check("MEM042", Row.OOM, needs=(Rehearsal,), tags=("memory", "script"), cost=Cost.SECONDS)
def rests_on_assumptions(facts: Facts, options: Options) -> Iterator[Finding]:
    """What a rehearsal took for granted.

    What: Lists values that a script read off tensors which hold none, and rules that stand for what was not
        run.
    Why: A script that decides by such a value (a router, a threshold, an early stop) may go another way in
        the job.
    Fix: Look at the lines; where one decides about memory, rehearse on a GPU.
    Sources: torch._subclasses.fake_tensor (data-dependent operators).
    """
    found = facts[Rehearsal]
    if not found.mode:
        yield skip("the script was not started")
        return
    if not found.assumed:
        yield ok("nothing was assumed")
        return
    for a in found.assumed[:SHOWN]:
        times = f" ({a.times} times)" if a.times > 1 else ""
        yield info(f"assumed: {a.what}{times}", subject=at(a.place))
    if len(found.assumed) > SHOWN:
        yield info(f"assumed: {len(found.assumed) - SHOWN} more (data.assumed has all)")
