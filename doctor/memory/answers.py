"""From a replay to its answer: peaks, the moment and the tensors that make the highest one, and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from fsdp_doctor.memory.bounds import late_buckets, reserved
from fsdp_doctor.memory.causes import causes
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.kinds import ACTIVATIONS, context, kinds_of
from fsdp_doctor.memory.later import with_another
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.memory.rules import rules_used
from fsdp_doctor.memory.simulate import Living, Run, living, simulate, steps
from fsdp_doctor.memory.uneven import uneven
from fsdp_doctor.subjects.memory import (
    Assumption,
    Holder,
    HostNeed,
    MemoryForecast,
    Moment,
    Overhead,
    Part,
    Peak,
    StepMemory,
)
from fsdp_doctor.tables.gpu_memory import DEFAULT_SM, GIB, Product
from fsdp_doctor.tables.gpu_overhead import HANDLES, taken
from fsdp_doctor.tables.substitutions import MARGIN, known

HOLDERS = 12
"""Entries of the list of tensors at the peak."""


def forecast(done: Replay, job: Job, gpu: Product | None, another: bool = True) -> MemoryForecast:
    """The answer. `another`: one more step than there was counts, too."""
    events = done.events
    run = simulate(events)
    longer = with_another(events) if another else events
    later = simulate(longer) if another else run
    found = (*steps(run.phases), *steps(later.phases)[len(steps(run.phases)) :])
    peak_row = max((p for p in run.phases), key=lambda p: p.peak).peak_row
    when = context(events)
    held = living(events, peak_row)
    kinds = kinds_of(events, held, when, peak_row, unreduced=job.no_sync and job.accumulate > 1)
    parts = _parts(held, kinds)
    step, phase = when.at(peak_row)
    overhead = _overhead(job, gpu)
    peak = max(max(s.fwd_bwd_peak, s.opt_peak) for s in found)
    low, high = reserved(longer, later)
    late = late_buckets(events) if job.api == "ddp" else 0
    return MemoryForecast(
        steps=tuple(StepMemory(s.fwd_bwd_peak, s.after_backward, s.opt_peak) for s in found),
        peak=Peak(
            step,
            phase,
            events.operator_names[events.operators[peak_row]],
            events.module_names[events.modules[peak_row]],
            parts,
            _holders(held, kinds),
        ),
        allocated=peak,
        reserved_low=low,
        reserved_high=high,
        reserved_expandable=simulate(events, expandable=True).reserved_peak,
        steady=_between(run),
        host=HostNeed(
            run.host.peak,
            run.host.pinned,
            run.host.pinned_requested,
            job.ranks_on_node,
            int(job.host_gib * GIB) if job.host_gib is not None else None,
        ),
        overhead=overhead,
        margin=int(max(peak, late) * MARGIN) + max(0, late - peak),
        gpu=gpu.name if gpu is not None else "",
        capacity=int(gpu.gib * GIB) if gpu is not None else None,
        timeline=_timeline(run),
        assumptions=(
            *_assumptions(done.about),
            *_buckets(late - peak),
            *_untied(done.about, job),
            *uneven(done.about, job),
        ),
        unknown_operators=_unknown(held, _covered(done.about)),
        preparation=_preparation(run),
        rules=rules_used(done.about, gpu.sm if gpu is not None else DEFAULT_SM),
        causes=causes(events, held, {b: k == ACTIVATIONS for b, k in kinds.items()}, run.peak),
    )


def _buckets(more: int) -> tuple[Assumption, ...]:
    """What DDP may need on top in its second step: it is in the margin."""
    if more <= 0:
        return ()
    what = f"NCCL gives DDP's first buckets back at once; where it does not, step 2 takes {more} bytes more"
    return (Assumption("torch.nn.parallel.DistributedDataParallel", what, 1),)


def _untied(about: Mapping[str, object], job: Job) -> Iterator[Assumption]:
    """Tied weights that FSDP1 and DDP take for several, as `Module.to_empty` makes them from meta tensors."""
    listed = about.get("parameters")
    for p in listed if job.api != "fsdp2" and not job.keep_ties and isinstance(listed, list) else ():
        others = p.get("other_names") if isinstance(p, dict) else None
        if others:
            elements = prod(int(d) for d in p["shape"]) * len(others)
            what = (
                f"it is made apart from {', '.join(map(str, others))}, as Module.to_empty makes it of meta "
                f"tensors; a model that is built with memory shares it: {elements} parameters less, with "
                "their gradients and states (--keep-ties)"
            )
            yield Assumption(str(p["name"]), what, 1)


def _preparation(run: Run) -> int:
    """The highest bytes before the first step: FSDP1 copies a whole unit when it flattens it."""
    found = 0
    for p in run.phases:
        if p.name.startswith("step "):
            break
        found = max(found, p.peak)
    return found


def _between(run: Run) -> int:
    """What stays from one step to the next; at the very end the loop's own objects are gone."""
    ends = [p.before for p in run.phases if p.name == "end of step"]
    return ends[-1] if ends else run.phases[-1].after


def _overhead(job: Job, gpu: Product | None) -> Overhead:
    row = taken(gpu.sm if gpu is not None else 90)
    groups = job.groups
    nccl = row.nccl_first + (groups - 1) * row.nccl_more if job.world_size > 1 else 0
    basis = "measured on an H200" if row.measured else "typical figures"
    return Overhead(row.context, HANDLES * row.cublas, nccl, basis)


def _parts(held: Iterable[Living], kinds: Mapping[int, str]) -> tuple[Part, ...]:
    sums: dict[str, list[int]] = {}
    for b in held:
        entry = sums.setdefault(kinds[b.block], [0, 0])
        entry[0] += b.size
        entry[1] += 1
    return tuple(Part(n, s, c) for n, (s, c) in sorted(sums.items(), key=lambda kv: -kv[1][0]))


def _holders(held: Iterable[Living], kinds: Mapping[int, str]) -> tuple[Holder, ...]:
    groups: dict[tuple[str, int, str], list[Living]] = {}
    for b in held:
        groups.setdefault((b.operator, b.size, kinds[b.block]), []).append(b)
    largest = sorted(groups.items(), key=lambda kv: -kv[0][1] * len(kv[1]))[:HOLDERS]
    return tuple(Holder(op, _modules(found), size, len(found), kind) for (op, size, kind), found in largest)


def _modules(found: list[Living]) -> str:
    names = sorted({b.module for b in found})
    return names[0] if len(names) == 1 else f"{names[0] or names[1]} and {len(names) - 1} more"


def _timeline(run: Run) -> tuple[Moment, ...]:
    moments: list[Moment] = []
    step = 0
    # After the last step the loop's own objects go, which is no moment of a training.
    last = next((p for p in run.phases[:0:-1] if p.name != "end"), None)
    for p in run.phases[1:]:
        if p.name.startswith("step "):
            step = int(p.name[5:])
            continue
        if p.name != "end":
            moments.append(Moment(step, p.name, p.peak, p.before if p is last else p.after))
    return tuple(moments)


def _assumptions(about: Mapping[str, object]) -> tuple[Assumption, ...]:
    listed = about.get("assumed")
    found: list[Assumption] = []
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            times = entry.get("times")
            found.append(
                Assumption(
                    str(entry.get("place", "")),
                    str(entry.get("what", "")),
                    times if isinstance(times, int) else 1,
                )
            )
    return tuple(found)


def _covered(about: Mapping[str, object]) -> frozenset[str]:
    """Operators of which every call was measured on a GPU."""
    listed = about.get("covered")
    return frozenset(str(o) for o in listed) if isinstance(listed, list) else frozenset()


def _unknown(held: Iterable[Living], covered: frozenset[str]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = {}
    for b in held:
        name = b.operator.removesuffix(" (workspace)")
        if "::" in name and not known(name) and name not in covered:
            sums[name] = sums.get(name, 0) + b.size
    return tuple(sorted(sums.items(), key=lambda kv: -kv[1]))
