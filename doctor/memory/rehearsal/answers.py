"""From what a child left to the answer: steps, peaks, what fits, and on what it rests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.memory.answers import forecast
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.rehearsal.job import Rehearse
from fsdp_doctor.memory.rehearsal.reading import integer, items, notes, text, unwritten
from fsdp_doctor.memory.rehearsal.run import STAND_IN, Outcome
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.memory.simulate import simulate, steps
from fsdp_doctor.subjects.memory import (
    Assumption,
    HostNeed,
    MemoryForecast,
    Moment,
    Overhead,
    Peak,
    ReplayProblem,
    StepMemory,
)
from fsdp_doctor.subjects.memory_measured import MeasuredOom
from fsdp_doctor.subjects.rehearsal import Rehearsal
from fsdp_doctor.tables.gpu_memory import GIB, Product
from fsdp_doctor.tables.gpu_overhead import taken
from fsdp_doctor.tables.substitutions import MARGIN

EARLY = {
    "end": "the script ended",
    "exit": "the script exited",
}


def conclude(job: Rehearse, done: Outcome, gpu: Product | None) -> Rehearsal:
    """The answer to a rehearsal."""
    result = done.result
    mode = text(result, "mode")
    wanted, taken_steps = job.steps, integer(result, "steps_done")
    oom = _oom(result)
    found: MemoryForecast | None = None
    init_peak, seconds = 0, tuple[float, ...]()
    if mode == "gpu" and isinstance(result.get("phases"), list):
        found, init_peak, seconds = _measured(job, result, gpu, oom is not None)
    elif done.events is not None and taken_steps and "rows" in result:
        found, init_peak = _followed(job, done, gpu)
    assumed = notes(result, "assumed")
    if mode == "fake" and gpu is None:
        assumed = (*assumed, Assumption("", f"torch.cuda answers for one {STAND_IN}: no --gpu was named", 1))
    return Rehearsal(
        mode=mode,
        script=job.name,
        world_size=job.world_size,
        steps_wanted=wanted,
        steps_done=taken_steps,
        ended=text(result, "ended"),
        said=text(result, "said")[:300],
        ended_at=text(result, "place"),
        forecast=found,
        init_peak=init_peak,
        step_seconds=seconds,
        measured_on=text(result, "name"),
        torch=text(result, "torch"),
        workspaces=integer(result, "workspaces"),
        oom=oom,
        optimizers=tuple(str(o) for o in items(result, "optimizers")),
        communicators=integer(result, "groups"),
        assumed=assumed,
        handled=notes(result, "handled"),
        elsewhere=notes(result, "elsewhere"),
        unwritten=unwritten(result),
        problem=_problem(done),
    )


# ------------------------------------------------------------------------------------------ fake tensors
def _followed(job: Rehearse, done: Outcome, gpu: Product | None) -> tuple[MemoryForecast | None, int]:
    events = done.events
    assert events is not None
    if not steps(simulate(events).phases):
        return None, 0
    stands_for = Job(model=job.name, batch=None, world_size=job.world_size)
    found = forecast(Replay(events, {"rules": done.result.get("rules")}), stands_for, gpu, another=False)
    after = [m for m in found.timeline if m.step]
    before = [m for m in found.timeline if not m.step]
    init = max((m.peak for m in before), default=0)
    highest = max(max((m.peak for m in after), default=0), init)
    overhead = _overhead(job, integer(done.result, "groups"), gpu, found.overhead.context)
    return replace(
        found, allocated=highest, margin=int(highest * MARGIN), overhead=overhead, assumptions=()
    ), init


def _overhead(
    job: Rehearse, groups: int, gpu: Product | None, context: int, libraries: int | None = None
) -> Overhead:
    row = taken(gpu.sm if gpu is not None else 90)
    nccl = row.nccl_first + (max(groups, 1) - 1) * row.nccl_more if job.world_size > 1 else 0
    basis = "measured on an H200" if row.measured else "typical figures"
    return Overhead(context, row.cublas * 2 if libraries is None else libraries, nccl, basis)


# ------------------------------------------------------------------------------------------ a real GPU
def _measured(
    job: Rehearse, result: Mapping[str, object], gpu: Product | None, ran_out: bool
) -> tuple[MemoryForecast | None, int, tuple[float, ...]]:
    """The rows of the child's meter as a forecast; allocated includes the workspaces of cuBLAS."""
    timeline: list[Moment] = []
    starts: list[float] = []
    now, step, reserved = 0.0, 0, 0
    for row in items(result, "phases"):
        if not isinstance(row, Mapping):
            continue
        name = text(row, "name")
        if name.startswith("step "):
            step = int(name[5:])
            starts.append(now)
        timeline.append(Moment(step, name, integer(row, "peak"), integer(row, "after")))
        reserved = max(reserved, integer(row, "reserved"))
        spent = row.get("seconds")
        now += spent if isinstance(spent, (int, float)) else 0.0
    done = integer(result, "steps_done")
    found = _steps(timeline)
    if not timeline or not (found or ran_out):
        return None, max((m.peak for m in timeline), default=0), ()
    top = max(timeline, key=lambda m: m.peak)
    init = max((m.peak for m in timeline if not m.step), default=0)
    name, capacity = text(result, "name"), integer(result, "total") or None
    if gpu is not None:
        name, capacity = gpu.name, int(gpu.gib * GIB)
    overhead = _overhead(job, integer(result, "groups"), gpu, integer(result, "outside"), libraries=0)
    return (
        MemoryForecast(
            steps=found,
            peak=Peak(top.step, top.phase, "", "", (), ()),
            allocated=top.peak,
            reserved_low=reserved,
            reserved_high=reserved,
            reserved_expandable=reserved,
            steady=timeline[-1].after,
            host=HostNeed(0),
            overhead=replace(overhead, basis=f"context measured here, NCCL {overhead.basis}"),
            margin=0,
            gpu=name,
            capacity=capacity,
            timeline=tuple(timeline),
        ),
        init,
        tuple(b - a for a, b in zip(starts, [*starts[1:], now], strict=True))[:done],
    )


def _steps(timeline: Sequence[Moment]) -> tuple[StepMemory, ...]:
    found: list[StepMemory] = []
    for number in sorted({m.step for m in timeline if m.step}):
        own = [m for m in timeline if m.step == number]
        work = [m.peak for m in own if m.phase in ("forward", "backward") or m.phase.startswith("step")]
        backward = [m.after for m in own if m.phase == "backward"]
        optimizer = [m.peak for m in own if m.phase == "optimizer"]
        if work and backward and optimizer:
            found.append(StepMemory(max(work), backward[-1], max(optimizer)))
    return tuple(found)


def typical_seconds(seconds: Sequence[float]) -> float | None:
    """Seconds of a step once everything is warm: the median without the first."""
    warm = list(seconds)[1:] or list(seconds)
    return statistics.median(warm) if warm else None


# ------------------------------------------------------------------------------------------ problems
def _problem(done: Outcome) -> ReplayProblem | None:
    if done.kind:
        return _placed(done.kind, done.text, done.place, done.trace)
    said = done.result.get("problem")
    if isinstance(said, Mapping):
        kind, words = text(said, "kind"), text(said, "text")
        if kind == "operator":
            words = f"the operator {text(said, 'operator')} has no form that works on shapes alone: {words}"
            if text(said, "module"):
                words += f", in module {text(said, 'module')}"
        return _placed(kind, words, text(said, "place"), text(said, "trace"))
    ended = text(done.result, "ended")
    if ended in EARLY and not integer(done.result, "steps_done"):
        return _placed("early", _early(done), text(done.result, "place"), done.said)
    return None


def _oom(result: Mapping[str, object]) -> MeasuredOom | None:
    """Where memory ran out; what its message says in figures is read by whoever knows its wordings."""
    said = result.get("problem")
    if not isinstance(said, Mapping) or text(said, "kind") != "oom":
        return None
    step = integer(said, "step")
    return MeasuredOom(text(said, "phase"), f"step {step}" if step else "", text(said, "text"))


def _early(done: Outcome) -> str:
    ended = text(done.result, "ended")
    code = done.result.get("code")
    said = EARLY[ended] + (f" with status {code}" if ended == "exit" and code else "") + _words(done.result)
    if integer(done.result, "backwards"):
        return f"{said} after a backward, without an optimizer step"
    if integer(done.result, "forwards"):
        return f"{said} after a forward, without a backward"
    if text(done.result, "said"):
        return f"{said} before any forward"
    last = done.said.strip().splitlines()[-1:] or [""]
    words = f"; its last words: {last[0][:200]}" if last[0] else ""
    return f"{said} before any forward{words}"


def _words(result: Mapping[str, object]) -> str:
    """What a script said when it exited."""
    said = " ".join(text(result, "said").split())[:300]
    return f" and says: {said}," if said else ""


def _placed(kind: str, words: str, place: str, trace: str) -> ReplayProblem:
    file, _, line = place.rpartition(":")
    return ReplayProblem(kind, words, file or None, int(line) if line.isdigit() else None, trace)
