"""All ranks of this host wait at the same place: what their GPUs and the size of the job still tell."""

from __future__ import annotations

from fsdp_doctor.diagnosis.live.activity import idle, loads, spinning
from fsdp_doctor.diagnosis.live.process_states import names
from fsdp_doctor.diagnosis.live.words import ranks, they, where
from fsdp_doctor.subjects.stacks import ALL_WAIT, ELSEWHERE, WORKING, LiveConclusion, LiveJob, StackGroup


def all_wait(job: LiveJob, group: StackGroup) -> LiveConclusion:
    """An idle GPU among busy ones accuses its rank; else nobody is accused: all stand at the same place."""
    if suspects := _idle_among_spinning(job):
        return LiveConclusion(
            ELSEWHERE,
            f"all ranks of this host wait in {where(group.place)}, but the GPU of {ranks(suspects)} is idle "
            f"while the others run a kernel that waits: {loads(job.gpus)}",
            suspects,
            tuple(m for m in group.members if m not in suspects),
            confidence="medium",
            fix="See what that rank has not launched: its Flight Recorder shows its last collective",
        )
    others = _on_other_hosts(job)
    moving = names([p for p in job.processes if p.moving])
    if moving:
        return LiveConclusion(
            WORKING,
            f"{ranks(group.members)} were seen in {where(group.place)}, and {ranks(moving)} moved "
            f"between two looks{others}",
            confidence="medium",
        )
    nobody = "; none is missing, so that the network or a GPU is what they wait for"
    return LiveConclusion(
        ALL_WAIT,
        f"cannot tell: {ranks(group.members)} {they(group.members, 'waits', 'wait')} in {where(group.place)}"
        + (f"; {loads(job.gpus)}" if job.gpus else "")
        + (others or nobody),
        (),
        group.members,
        confidence="low",
        fix="Run `fsdp-doctor diagnose --live` on every host of the job, then compare"
        if others
        else "Read the Flight Recorder dumps and the kernel's log; check links with `fsdp-doctor probe`",
    )


def _idle_among_spinning(job: LiveJob) -> tuple[int, ...]:
    """Ranks whose GPU runs nothing while more others spin in a collective: they did not launch it."""
    still = idle(job.gpus)
    if len(still) >= len(spinning(job.gpus)):
        return ()
    return tuple(sorted(r for g in still for r in g.ranks))


def _on_other_hosts(job: LiveJob) -> str:
    here, world = len(job.processes), job.world_size
    if world is None or world <= here:
        return ""
    return f"; the other {world - here} of {world} ranks are on other hosts or of other tasks: look there"
