"""The optimizer's state: how it names parameters, its groups, its kind, and whether it is there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise

from fsdp_doctor.ckpt.compat.question import DCP, FSDP1, PER_RANK, WHOLE, Question, missing, size, some
from fsdp_doctor.subjects.checkpoint import GroupForm, Keying, Kind, Layout, Role, Tensor
from fsdp_doctor.subjects.load_target import LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle
from fsdp_doctor.tables.optimizers import OPTIONS, STATES

NO_OPTIMIZER = "[Errno 2] No such file or directory"
NAMED = "Save with get_state_dict and dcp.save: state is then named by parameter"
FLAT_OPTION = "StateDictOptions(flatten_optimizer_state_dict=True)"


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
    stop = yield from _keys(question)
    if stop or question.index.format not in DCP | WHOLE:
        return
    yield from _form(question)
    yield from _kind(question)
    yield from _parameters(question)
    yield from _groups(question)


def _root(question: Question) -> str:
    return question.index.optimizer.root or "optim"


def _first(question: Question) -> str:
    """The parameter whose state is asked for first."""
    return next(iter(question.trainable), "") or next(iter(question.saved), "<the first parameter>")


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
            message=missing(f"optim.state.{_first(question)}.step") if question.index.format in DCP else "",
            fix="Load the model alone (get_model_state_dict, set_model_state_dict)",
        )
    elif question.index.format in DCP:
        yield question.obstacle(
            Cause.NO_OPTIMIZER,
            Effect.FAILS,
            "no optimizer state",
            f"state of {target.optimizer}",
            message=f"Missing key in checkpoint state_dict: optim.state.{_first(question)}."
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
        else f"Missing key in checkpoint state_dict: {_root(question)}.state."
    )
    yield question.obstacle(
        Cause.OPTIMIZER_SLICES,
        Effect.WRONG if silent else Effect.FAILS,
        "optimizer.state_dict() of FSDP1 saved through DCP: of all ranks' slices one survived under each key"
        + (
            f" ({_root(question)}.state.0.{first}), and it loads into every rank without an error"
            if silent
            else ""
        ),
        "state of whole parameters, by name",
        message="" if silent else said,
        fix="The model is whole: load it alone and start the optimizer anew. " + NAMED,
    )


# ------------------------------------------------------------------------------------------ keys
def _keys(question: Question) -> Generator[Obstacle, None, bool]:
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
            message=f"Missing key in checkpoint state_dict: {_root(question)}.state.{_first(question)}."
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
            message=f"Missing key in checkpoint state_dict: {_root(question)}.state.0."
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
            f"optimizer state is keyed by integers ({_root(question)}.state.0): an optimizer that has not "
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


# ------------------------------------------------------------------------------------- form, kind, groups
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
            message=missing(f"{_root(question)}.param_groups.0.lr"),
            fix=f"Pass {FLAT_OPTION} to get_optimizer_state_dict and set_optimizer_state_dict",
        )
    elif flat and asked is False:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.FAILS,
            "optimizer state was saved flattened (param_groups by parameter)",
            "the form that is asked for: groups by number",
            message=f"Missing key in checkpoint state_dict: {_root(question)}.param_groups.0.",
            fix=f"Pass {FLAT_OPTION} to get_optimizer_state_dict and set_optimizer_state_dict",
        )
    elif not flat and asked:
        yield question.obstacle(
            Cause.OPTIMIZER_FORM,
            Effect.FAILS,
            "optimizer state was saved with groups by number",
            "the form that is asked for: flattened",
            message=f"Missing key in checkpoint state_dict: "
            f"{_root(question)}.param_groups.{_first(question)}.",
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
        return
    effect = Effect.LOST if question.target.partial else Effect.FAILS
    key = (
        f"state.{_first(question)}.{lacking[0] if lacking != list(STATES[kind]) or len(lacking) == 1 else ''}"
        if lacking
        else "param_groups."
    )
    yield question.obstacle(
        Cause.OPTIMIZER_KIND,
        effect,
        f"state of {saved.kind or 'another optimizer'} ({some(saved.states) or 'none'})",
        f"state of {kind} ({some(STATES[kind]) or 'none'}{'; options ' + some(unset) if unset else ''})",
        message=f"Missing key in checkpoint state_dict: {_root(question)}.{key}"
        if question.index.format in DCP
        else "",
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
            message=f"Missing key in checkpoint state_dict: {_root(question)}.state.{absent[0]}.",
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
            message=f"Missing key in checkpoint state_dict: {_root(question)}.param_groups.{len(numbered)}."
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
