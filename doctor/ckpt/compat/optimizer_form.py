"""The form of optimizer state, its kind, the parameters that have it, and its groups."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.question import (
    DCP,
    Question,
    missing,
    some,
)
from fsdp_doctor.subjects.checkpoint import Layout
from fsdp_doctor.subjects.checkpoint_state import GroupForm
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle
from fsdp_doctor.tables.optimizers import OPTIONS, STATES

FLAT_OPTION = "StateDictOptions(flatten_optimizer_state_dict=True)"

AMSGRAD = "max_exp_avg_sq"


def forms(question: Question) -> Iterator[Obstacle]:
    """Each of them."""
    yield from _form(question)
    yield from _kind(question)
    yield from _parameters(question)
    yield from _groups(question)


def _form(question: Question) -> Iterator[Obstacle]:
    """flatten_optimizer_state_dict on one side only; groups as one object of torch 2.3."""
    form, asked = question.index.optimizer.group_form, question.target.flat_optimizer
    if question.index.format not in DCP:
        return
    flat = form is GroupForm.FLATTENED
    if flat and asked is None and question.index.layout is not Layout.TORCHTITAN:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.CONVERT_API,
            "optimizer state was saved flattened (param_groups by parameter)",
            f"get_state_dict with {FLAT_OPTION}",
            message=missing(f"{question.optimizer_root}.param_groups.0.lr"),
            fix=f"Pass {FLAT_OPTION} to get_optimizer_state_dict and set_optimizer_state_dict",
        )
    elif flat and asked is False:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.FAILS,
            "optimizer state was saved flattened (param_groups by parameter)",
            "the form that is asked for: groups by number",
            message=f"Missing key in checkpoint state_dict: {question.optimizer_root}.param_groups.0.",
            fix=f"Pass {FLAT_OPTION} to get_optimizer_state_dict and set_optimizer_state_dict",
        )
    elif not flat and asked:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.FAILS,
            "optimizer state was saved with groups by number",
            "the form that is asked for: flattened",
            message=f"Missing key in checkpoint state_dict: "
            f"{question.optimizer_root}.param_groups.{question.first}.",
            fix="Load without flatten_optimizer_state_dict, then save flattened",
        )
    elif form is GroupForm.BLOB:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.NOTE,
            "param_groups is one object, as torch 2.3 and earlier saved it; newer releases still read it",
            "",
        )


def _kind(question: Question) -> Iterator[Obstacle]:
    """Another optimizer asks for state that is not there."""
    kind, saved = question.target.optimizer, question.index.optimizer
    if kind is None or kind not in STATES:
        return
    lacking = [s for s in STATES[kind] if s not in saved.states]
    options = {o.partition(".")[0] for g in saved.groups for o in g.options}
    unset = [o for o in OPTIONS[kind] if options and o not in options]
    if not lacking and not unset:
        yield from _dropped(question, kind)
        return
    effect = Effect.LOST if question.target.partial else Effect.FAILS
    key = (
        f"state.{question.first}.{lacking[0] if lacking != list(STATES[kind]) or len(lacking) == 1 else ''}"
        if lacking
        else "param_groups."
    )
    yield question.obstacle(
        Cause.OPTIMIZER_KIND,
        effect,
        f"state of {saved.kind or 'another optimizer'} ({some(saved.states) or 'none'})",
        f"state of {kind} ({some(STATES[kind]) or 'none'}{'; options ' + some(unset) if unset else ''})",
        message=f"Missing key in checkpoint state_dict: {question.optimizer_root}.{key}"
        if question.index.format in DCP
        else "",
        fix="Build the optimizer that saved it, or load the model alone and start the new optimizer from "
        "zero",
    )


def _dropped(question: Question, kind: str) -> Iterator[Obstacle]:
    """State that is saved and not asked for. dcp.load skips it, and brings the options that need it."""
    saved = question.index.optimizer
    dropped = [s for s in saved.states if s not in STATES[kind]]
    if not dropped or question.index.format not in DCP:
        return
    needed = dropped == [AMSGRAD]
    yield question.obstacle(
        Cause.OPTIMIZER_KIND,
        Effect.FAILS if needed else Effect.LOST,
        f"{some(dropped)} of {saved.kind or 'another optimizer'}, which {kind} does not ask for: skipped"
        + (
            ", and amsgrad=True comes with the groups, so that the first step fails"
            if needed
            else " without an error, and the saved options replace the new ones"
        ),
        f"state of {kind} ({some(STATES[kind]) or 'none'})",
        message=f"KeyError: '{AMSGRAD}'" if needed else "",
        fix="Build the optimizer that saved it, or load the model alone and start the new optimizer from "
        "zero",
    )


def _parameters(question: Question) -> Iterator[Obstacle]:
    """Trainable parameters without state: tied ones, formerly frozen ones; or more state than parameters."""
    if question.model is None or not question.with_state:
        return
    names = {question.prefix + t.name for t in question.model.tensors}
    absent = [n for n in question.trainable if n not in question.with_state and n in question.saved]
    doubled = [
        group for group in question.model.tied if sum(n in question.with_state for n in group) > 1 and names
    ]
    tied_at_save = [n for n in absent if question.saved[n].view_of is not None]
    if absent and STATES.get(question.target.optimizer or "adamw"):
        effect = Effect.LOST if question.target.partial else Effect.FAILS
        yield question.obstacle(
            Cause.TIED if tied_at_save or _tied_by_shape(question, absent) else Cause.MISSING_KEYS,
            effect,
            f"no optimizer state for {some(absent)}: tied to another parameter, or frozen, at save",
            "optimizer state for every parameter that is trained",
            message=f"Missing key in checkpoint state_dict: {question.optimizer_root}.state.{absent[0]}.",
            fix="Tie (or freeze) the parameter as at save, or load with allow_partial_load=True: its "
            "moments start "
            "from zero",
            tensor=absent[0],
            examples=tuple(absent[:8]),
        )
    for group in doubled:
        yield question.obstacle(
            Cause.TIED,
            Effect.FAILS,
            f"{some(group)} are one parameter now and were several at save, each with its own state",
            "the ties of the run that saved",
            message=f"Missing optimizer state for parameter '{group[-1]}' in checkpoint",
            fix="Untie them as at save, or load the model alone",
            tensor=group[-1],
        )


def _tied_by_shape(question: Question, absent: list[str]) -> bool:
    """Another weight of the same shape has state: it may have been tied to it."""
    shapes = {t.shape for n, t in question.saved.items() if n in question.with_state}
    return all(question.saved[n].shape in shapes for n in absent)


def _groups(question: Question) -> Iterator[Obstacle]:
    saved, asked = question.index.optimizer, question.target.param_groups
    by_number = question.index.format in DCP  # set_optimizer_state_dict maps whole files by name
    numbered = [g for g in saved.groups if g.index is not None and by_number]
    if asked is not None and numbered and asked > len(numbered):
        yield question.obstacle(
            Cause.GROUPS,
            Effect.LOST if question.target.partial else Effect.FAILS,
            f"{len(numbered)} parameter group{'s' if len(numbered) > 1 else ''}",
            f"{asked} parameter groups",
            message=f"Missing key in checkpoint state_dict: "
            f"{question.optimizer_root}.param_groups.{len(numbered)}."
            if question.index.format in DCP
            else "",
            fix="Build the groups of the run that saved, load, and regroup afterwards; or load the model "
            "alone",
        )
    elif asked is not None and numbered and asked < len(numbered):
        yield question.obstacle(
            Cause.GROUPS,
            Effect.LOST,
            f"{len(numbered)} parameter groups: the options of groups {asked} to {len(numbered) - 1} (such "
            "as "
            "weight_decay) are dropped without a warning",
            f"{asked} parameter group{'s' if asked > 1 else ''}",
            fix="Build the groups of the run that saved",
        )
    rates = sorted({str(g.options["lr"]) for g in saved.groups if g.options.get("lr") is not None})
    shown = f" ({some(rates)})" if rates else ""
    yield question.obstacle(
        Cause.SAVED_LR,
        Effect.NOTE,
        f"the saved learning rate{shown} replaces the one that the script sets, without a warning",
        "",
        fix="To change it, set it after loading: for group in optimizer.param_groups: group['lr'] = ...",
    )
