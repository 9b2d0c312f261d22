"""The optimizer's state: whether it is there, whole, and named so that it is found."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.optimizer_form import forms
from fsdp_doctor.ckpt.compat.optimizer_keys import NAMED, keys
from fsdp_doctor.ckpt.compat.question import (
    DCP,
    FSDP1,
    PER_RANK,
    WHOLE,
    Question,
    missing,
)
from fsdp_doctor.subjects.checkpoint import Layout
from fsdp_doctor.subjects.checkpoint_state import Keying, Role
from fsdp_doctor.subjects.load_target import LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

NO_OPTIMIZER = "[Errno 2] No such file or directory"


def rules(question: Question) -> Iterator[Obstacle]:
    """Absent, by integers, local slices, another form, kind or grouping; and whose learning rate wins."""
    saved = question.index.optimizer
    if saved.keying is Keying.NONE:
        yield from _absent(question)
        return
    if not question.asks_optimizer or question.index.flat_parameters:
        return
    if question.index.format in PER_RANK and question.load_api is not LoadApi.PER_RANK:
        return
    if saved.local_slices and question.index.format in DCP:
        yield from _slices(question)
        return
    stop = yield from keys(question)
    if stop or question.index.format not in DCP | WHOLE:
        return
    yield from forms(question)


# ------------------------------------------------------------------------------------------ absent
def _absent(question: Question) -> Iterator[Obstacle]:
    target = question.target
    if target.model_only or question.index.flat_parameters:
        return
    layout = question.index.layout in (Layout.ACCELERATE, Layout.TRAINER)
    if layout and any(e.role is Role.SCHEDULER for e in question.index.entries):
        yield question.obstacle(
            Cause.NO_OPTIMIZER,
            # The Trainer looks whether the file is there, and goes on without it.
            Effect.FAILS if question.index.layout is Layout.ACCELERATE else Effect.LOST,
            "a scheduler's state and no optimizer's: optimizer_0 or optimizer.bin is not there",
            "the optimizer's state beside it",
            message=NO_OPTIMIZER if question.index.layout is Layout.ACCELERATE else "",
            fix="Copy it again from where it was saved, or load the model alone; the optimizer starts anew",
        )
    elif target.optimizer is None:
        yield question.obstacle(
            Cause.NO_OPTIMIZER,
            Effect.NOTE,
            "no optimizer state: the optimizer starts anew, and a load that asks for its state fails",
            "",
            message=missing(f"optim.state.{question.first}.step") if question.index.format in DCP else "",
            fix="Load the model alone (get_model_state_dict, set_model_state_dict)",
        )
    elif question.index.format in DCP:
        yield question.obstacle(
            Cause.NO_OPTIMIZER,
            Effect.FAILS,
            "no optimizer state",
            f"state of {target.optimizer}",
            message=f"Missing key in checkpoint state_dict: optim.state.{question.first}."
            if question.load_api is LoadApi.STATE_DICT
            else "Missing key in checkpoint state_dict: optim.",
            fix="Load the model alone (get_model_state_dict, set_model_state_dict); the optimizer starts "
            "anew",
        )
    elif question.index.format in WHOLE | PER_RANK:
        yield question.obstacle(
            Cause.NO_OPTIMIZER,
            Effect.LOST,
            "no optimizer state: the optimizer starts anew",
            f"state of {target.optimizer}",
            fix="Save the optimizer too, or warm the learning rate up again",
        )


# ------------------------------------------------------------------------------------------ local slices
def _slices(question: Question) -> Iterator[Obstacle]:
    """FSDP1's own optimizer.state_dict() through DCP: every rank wrote its slice as if it were whole."""
    same = question.ranks is not None and question.ranks == question.saved_on
    first = question.index.optimizer.states[0] if question.index.optimizer.states else "exp_avg"
    raw = question.load_api is LoadApi.RAW
    silent = raw and question.api in FSDP1 and same and question.target.use_orig_params is not True
    said = (
        "Size mismatch between saved "
        if raw
        else f"Missing key in checkpoint state_dict: {question.optimizer_root}.state."
    )
    yield question.obstacle(
        Cause.OPTIMIZER_SLICES,
        Effect.WRONG if silent else Effect.FAILS,
        "optimizer.state_dict() of FSDP1 saved through DCP: of all ranks' slices one survived under each key"
        + (
            f" ({question.optimizer_root}.state.0.{first}), and it loads into every rank without an error"
            if silent
            else ""
        ),
        "state of whole parameters, by name",
        message="" if silent else said,
        fix="The model is whole: load it alone and start the optimizer anew. " + NAMED,
    )
