"""What the model's function leaves behind or keeps out of sharding: devices, optimizers, buffers."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import capacity, count, listed, names
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan
from fsdp_doctor.tables.units import unit_size as size

BUFFERS = 0.01
"""Part of the GPU that buffers may take."""
FEW = 1 << 20
"""Bytes up to which parameters off the device cost a host nothing."""


@check("WRP012", Row.START, needs=(UnitPlan,), tags=("wrap", "init"))
def devices(facts: Facts, options: Options) -> Iterator[Finding]:
    """Parameters do not follow the device, or cannot be sharded as they lie in memory.

    What: Builds the model under torch.device("meta") and looks which parameters stand elsewhere; looks for
        those that are not contiguous.
    Why: A model that is half on meta cannot be initialised by to_empty, and half of it is built in full by
        every rank of the host. FSDP2 does not support non-contiguous parameters.
    Fix: Make parameters without a device of their own, so that torch.device decides; call .contiguous().
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_param.py; torch.device as a context.
    """
    plan = facts[UnitPlan]
    strided = [p for p in plan.parameters if not p.contiguous and not p.ignored]
    if strided and plan.api == "fsdp2":
        yield fail(
            f"{len(strided)} parameters are not contiguous: {names(strided)}",
            "contiguous parameters: FSDP does not support others yet",
            fix=Fix("Make them contiguous: torch.nn.Parameter(p.detach().contiguous())"),
            subject=Subject(tensor=strided[0].name),
        )
    real = [p for p in plan.parameters if p.device != "meta"]
    if real and len(real) < len(plan.parameters):
        held = sum(p.elements * p.item_bytes for p in real)
        found = (
            f"{len(real)} of {len(plan.parameters)} parameters stand on {real[0].device} whatever the "
            f"device is: {names(real)} ({size(held)})"
        )
        expected, subject = (
            "all parameters on the device that torch.device names",
            Subject(tensor=real[0].name),
        )
        fix = Fix(
            "Take device=…, torch.Tensor(…) and tensors from files out of the constructor: torch.empty(…) "
            "follows torch.device"
        )
        if held <= FEW:
            yield info(found, expected=expected, fix=fix, subject=subject)
        else:
            yield warn(found, expected, fix=fix, subject=subject)
    elif real and plan.api != "ddp":
        held = sum(p.elements * p.item_bytes for p in real)
        yield info(
            f"the function builds all {count(plan.elements)} parameters on {real[0].device}: each rank of a "
            f"host takes {size(held)} of its memory before sharding",
            expected="parameters on meta, which are sharded first and filled then",
            fix=Fix('Build under torch.device("meta"), then to_empty and load or initialise the shards'),
        )


@check("WRP013", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory"))
def buffers(facts: Facts, options: Options) -> Iterator[Finding]:
    """Buffers take much memory.

    What: Adds up the buffers of the model and compares them with the GPU's memory.
    Why: FSDP shards parameters only: causal masks and rotary tables are whole on every rank.
    Fix: Share one buffer among the layers, compute it where it is used, or let the attention kernel mask.
    Sources: Torch.distributed.fsdp (buffers are not sharded).
    """
    plan = facts[UnitPlan]
    total = sum(b.bytes for b in plan.buffers)
    room, called = capacity(plan)
    if total <= BUFFERS * room:
        yield ok(f"{len(plan.buffers)} buffers of {size(total)}")
        return
    largest = sorted(plan.buffers, key=lambda b: -b.bytes)
    yield warn(
        f"{len(plan.buffers)} buffers take {size(total)} on every rank, {total / room:.1%} of {called}: "
        f"{listed(f'{b.name} {list(b.shape)} {size(b.bytes)}' for b in largest)}",
        f"at most {BUFFERS:.0%} of the GPU",
        fix=Fix("Share one buffer among the layers, or compute it in forward (is_causal instead of a mask)"),
    )


@check("WRP016", Row.OOM, needs=(UnitPlan,), tags=("wrap", "optimizer"))
def optimizer_first(facts: Facts, options: Options) -> Iterator[Finding]:
    """An optimizer was built before the model is sharded.

    What: Looks for optimizers among the attributes of the model and its modules.
    Why: It holds the unsharded parameters: they are never freed, its states are of full size, and the shards
        are not trained.
    Fix: Build the optimizer after fully_shard or FSDP(…), from the sharded model's parameters.
    Sources: Torch.distributed.fsdp, "the optimizer must be initialized after the module has been wrapped".
    """
    plan = facts[UnitPlan]
    if not plan.optimizers or plan.api == "ddp":
        yield ok("no optimizer holds unsharded parameters" if not plan.optimizers else "DDP keeps parameters")
        return
    trained = [p for p in plan.parameters if p.trainable]
    yield fail(
        f"{listed(plan.optimizers)} holds parameters from before sharding; with Adam up to "
        f"{size(sum(2 * p.elements * p.item_bytes for p in trained))} of states per rank instead of "
        f"1/{max(1, plan.shard_size)} of it",
        "an optimizer over the sharded parameters",
        fix=Fix("Build the optimizer after the model is sharded"),
    )


@check("WRP019", Row.WRONG, needs=(UnitPlan,), tags=("wrap", "memory"))
def ignored(facts: Facts, options: Options) -> Iterator[Finding]:
    """Parameters are kept out of sharding.

    What: Adds up the parameters that ignored_modules or ignored_params keep out of FSDP.
    Why: They are whole on every rank, with gradients and optimizer states, and FSDP does not reduce their
        gradients: trained on different data, the ranks' copies drift apart.
        FSDP2's are plain tensors beside DTensors: one parameter group with both fails in the optimizer's
        foreach and fused kernels, and clip_grad_norm_ over both fails always.
    Fix: Shard them, freeze them, or reduce their gradients by hand before the optimizer's step. With FSDP2
        give them a parameter group of their own, and clip them apart.
    Sources: Torch.distributed.fsdp (ignored_modules, ignored_states, ignored_params); measured, torch 2.13.
    """
    plan = facts[UnitPlan]
    kept = [p for p in plan.parameters if p.ignored]
    if not kept:
        yield ok("no parameter is kept out of sharding")
        return
    trained = [p for p in kept if p.trainable]
    held = _bytes(kept) + 3 * _bytes(trained)
    found = (
        f"{len(kept)} parameters ({count(sum(p.elements for p in kept))} elements) are whole on every rank: "
        f"{size(held)} with gradients and Adam's states; {names(kept)}"
    )
    if not trained:
        yield info(found)
        return
    mixed = _mixed(plan)
    if mixed:
        yield fail(
            f"{found}; {mixed} says: got mixed torch.Tensor and DTensor (figures are those of two groups)",
            "a parameter group of their own for plain tensors",
            fix=Fix(
                "Give the optimizer two groups, the DTensors and the others, clip each apart, and all-reduce "
                "the gradients of the others"
            ),
            subject=Subject(tensor=trained[0].name),
            row=Row.START,
        )
        return
    yield warn(
        f"{found}; {len(trained)} of them train, and nothing reduces their gradients",
        "trained parameters within FSDP",
        fix=Fix("Shard them, freeze them, or all-reduce their gradients before each step"),
        subject=Subject(tensor=trained[0].name),
    )


def _mixed(plan: UnitPlan) -> str:
    """What refuses plain tensors beside DTensors, where both are given to it in one list."""
    if plan.api != "fsdp2" or all(p.ignored for p in plan.parameters if p.trainable):
        return ""
    if plan.clip:
        return "clip_grad_norm_(model.parameters())"
    if plan.optimizer and not plan.optimizer.endswith("_loop"):
        return f"the step of {plan.optimizer} over model.parameters()"
    return ""


def _bytes(parameters: list[Parameter]) -> int:
    return sum(p.elements * p.item_bytes for p in parameters)
