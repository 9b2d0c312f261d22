"""Optimizer state by parameter name against state by integer."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise

from fsdp_doctor.ckpt.compat.question import (
    DCP,
    FSDP1,
    PER_RANK,
    Question,
    size,
)
from fsdp_doctor.subjects.checkpoint import Kind, Tensor
from fsdp_doctor.subjects.checkpoint_state import Keying
from fsdp_doctor.subjects.load_target import LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

NAMED = "Save with get_state_dict and dcp.save: state is then named by parameter"


def keys(question: Question) -> Generator[Obstacle, None, bool]:
    """Names against integers. Returns whether anything further can be judged."""
    by_id = question.index.optimizer.keying is Keying.PARAM_ID
    named = question.load_api is LoadApi.STATE_DICT
    form = question.index.format
    if form in PER_RANK:
        return True
    if by_id and named:
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.FAILS,
            "optimizer state is keyed by integers (optimizer.state_dict()), and names are asked for",
            "optimizer state by parameter name",
            message=f"Missing key in checkpoint state_dict: {question.optimizer_root}.state.{question.first}."
            if form in DCP
            else "'state.0.step'",
            fix="Load it into optimizer.state_dict() of an optimizer that has stepped once without gradients "
            "(--load-api raw), then save with get_state_dict; or load the model alone",
        )
        return True
    if not by_id and not named:
        silent = form in DCP and question.target.primed is not True
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.LOST if silent else Effect.FAILS,
            "optimizer state is named by parameter, and optimizer.state_dict() asks for integers"
            + (
                ": of an optimizer that has not stepped for none at all, and Adam starts from zero"
                if silent
                else ""
            ),
            "optimizer state by integer",
            message=f"Missing key in checkpoint state_dict: {question.optimizer_root}.state.0."
            if form in DCP and not silent
            else "",
            fix="Load with get_state_dict, dcp.load and set_state_dict"
            if form in DCP
            else "Load with set_optimizer_state_dict",
        )
        return True
    if by_id:
        yield from _by_id(question)
        return True
    return False


def _by_id(question: Question) -> Iterator[Obstacle]:
    """Integers: they mean the order of parameters, and a fresh optimizer asks for none of them."""
    if question.api in FSDP1 and question.index.format in DCP:
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.FAILS,
            "optimizer state of whole parameters, and FSDP1's optimizer.state_dict() asks for its flat "
            "slices",
            "optimizer state by parameter name",
            message="Size mismatch between saved ",
            fix="Load the model alone, or load both under FSDP2 and save again with get_state_dict",
        )
        return
    if question.index.format in DCP and question.target.primed is not True:
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.LOST,
            f"optimizer state is keyed by integers ({question.optimizer_root}.state.0): an optimizer that "
            "has not "
            "stepped "
            "asks for none of it, and starts from zero without an error",
            "optimizer state by parameter name",
            fix="Step once with zero gradients and lr=0 before loading, then save again with get_state_dict "
            "and dcp.save",
        )
    unequal, sure = _order(question)
    if unequal is not None:
        number, held, name, shape = unequal
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.FAILS,
            f"the state of parameter {number} has the size {list(held.shape)}, and {name} has "
            f"{list(shape)}: the "
            "order of parameters changed",
            "parameters in the order of the run that saved",
            message=f"Size mismatch between saved {size(held.shape)} and current: {size(shape)} for "
            f"{held.key}"
            if question.index.format in DCP
            else "",
            fix="Build the optimizer's parameters in the order of the run that saved. " + NAMED,
            tensor=held.key,
        )
    elif not sure:
        yield question.obstacle(
            Cause.INTEGER_KEYS,
            Effect.LOST,
            "optimizer state is keyed by integers: if parameters are built in another order, the state of "
            "those "
            "with equal sizes is swapped without an error",
            "optimizer state by parameter name",
            fix="Keep the order of parameters (and of groups). " + NAMED,
        )


def _order(question: Question) -> tuple[tuple[int, Tensor, str, tuple[int, ...]] | None, bool]:
    """(the first state whose size is not its parameter's, whether the order is proven)."""
    if question.model is None:
        return None, False
    shapes = {t.name: t.shape for t in question.model.tensors}
    order = question.trainable
    held: dict[int, Tensor] = {}
    for tensor in question.index.tensors:
        if tensor.kind is Kind.OPTIMIZER and tensor.state and tensor.shape and tensor.name.isdigit():
            held.setdefault(int(tensor.name), tensor)
    for number, name in enumerate(order):
        if number in held and held[number].shape != shapes[name]:
            return (number, held[number], name, shapes[name]), False
    manifest = question.index.manifest
    if manifest is not None and manifest.parameters:
        return None, manifest.parameters == order
    sizes = sorted(shapes[n] for n in order)
    return None, bool(order) and all(a != b for a, b in pairwise(sizes))
