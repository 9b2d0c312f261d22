"""Configurations that cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Evidence, Finding, Fix, Row, Status, Subject, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.subjects.unit_plan import UnitPlan

FIXES = {
    "model": "Correct the line that is named, or give the function its arguments with --model-args",
    "batch": "Make the function return a tuple of tensors on the device that it is given",
    "gpu": "Leave the device to the doctor, which places the module and the batch",
    "network": "Build it from what is on this machine, without downloading anything",
    "loss": "Wrap the model so that its forward returns the scalar loss",
    "class": "Name classes of modules that are in the model",
    "operator": "Register a shape-only form of the operator (torch.library.register_fake), or leave it out",
    "time": "Give more --deadline, or look at the line where it stands",
    "unmodelled": "Leave out what is named: its memory is not modelled, and no figure is given for it",
    "torch": "Name the Python that has torch with --python",
}
CORRECT = "Correct the line that is named; --verbose shows the traceback"
UNJUDGED = ("operator", "time", "child", "torch", "unmodelled")
UNSAID = "The job itself may run: nothing is said of its memory before this is out of the way."
LACKING = {
    "gpu": "A replay has no GPU and needs none. On a GPU the line may work; built without one, the model "
    "takes no memory here, however large it is.",
    "network": "A replay fetches nothing: where compute nodes have no network either, a job ends here too; "
    "where they have one, each rank fetches it.",
    "input": "Ranks of a job have no standard input either: they would end here, or wait for ever.",
    "values": "The model is built and run on shapes. On a GPU the line may work, but what it decides is not "
    "known here.",
    "memory": "A job builds it once per rank: what is too large for this host is so for a node whose ranks "
    "build it side by side.",
}
"""Why it matters that the function asks for what a replay has not."""


@check("MEM001", Row.OOM, needs=(MemoryAnswer,), uses=(UnitPlan,), tags=("memory",), cost=Cost.SECONDS)
def cannot_be_replayed(facts: Facts, options: Options) -> Iterator[Finding]:
    """The configuration cannot be replayed.

    What: Runs the model's forward and backward and the optimizer on fake tensors; reports the model's own
        line where that fails, and the operator where torch has no shape-only form of it.
    Why: What fails on shapes fails on the GPUs too, after they were paid for.
    Fix: Correct the line; for an operator of your own register a fake.
    Sources: torch.library.register_fake; torch._subclasses.fake_tensor.
    """
    problem = facts[MemoryAnswer].problem
    if problem is None:
        yield ok("two optimizer steps were replayed")
        return
    plan = facts.find(UnitPlan)
    if problem.kind == "class" and plan is not None and (plan.missing or plan.unknown):
        yield skip("a class that is named is not in the model (WRP002)")
        return
    unjudged = problem.kind in UNJUDGED
    yield Finding(
        Status.ERROR if unjudged else Status.FAIL,
        problem.text,
        "two optimizer steps on fake tensors",
        why=UNSAID if unjudged else LACKING.get(problem.lacks, ""),
        subject=Subject(file=problem.file, line=problem.line),
        fix=Fix(FIXES.get("" if unjudged else problem.lacks) or FIXES.get(problem.kind) or CORRECT),
        evidence=(Evidence("traceback", problem.trace),) if problem.trace else (),
    )
