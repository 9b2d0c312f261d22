"""The optimizer's state: how it is keyed, of which optimizer it is, its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fsdp_doctor.ckpt.draft import Draft, EntryDraft
from fsdp_doctor.ckpt.naming import Names, parameter
from fsdp_doctor.subjects.checkpoint import Format, Kind, Tensor
from fsdp_doctor.subjects.checkpoint_state import GroupForm, Keying, Optimizer, ParamGroup, Plain
from fsdp_doctor.tables.optimizer_states import KINDS, OPTIONS

PER_RANK = (Format.LOCAL_PER_RANK, Format.SHARDED_PER_RANK, Format.DTENSOR_PER_RANK, Format.TORCH_PER_RANK)


def optimizer_of(draft: Draft, names: Names, tensors: list[Tensor]) -> Optimizer:
    """Everything that keys, shapes and groups tell."""
    ours = [t for t in tensors if t.kind is Kind.OPTIMIZER]
    states, owners = Counter[str](), set()
    for tensor in ours:
        if tensor.state:
            states[tensor.state] += 1
            owners.add(tensor.name)
    scalars = [e for e in draft.entries if names.optimizer_root(e.key) is not None]
    for entry in scalars:
        name, state = parameter(names, entry.key)
        if state is not None and ".param_groups" not in f".{entry.key}":
            states[state] += 1
            owners.add(name)
    groups, form = _groups(draft, names, scalars)
    if not ours and not scalars:
        return Optimizer()
    model = {t.name for t in tensors if t.kind is Kind.MODEL}
    keying = _keying(owners, groups, model)
    if draft.format in (Format.ZERO, Format.ZERO_UNIVERSAL) and keying is Keying.NONE:
        keying = Keying.PARAM_ID if draft.format is Format.ZERO else Keying.FQN
    root = next((r for r in names.optimizer_roots), ours[0].key.split(".", 1)[0] if ours else "")
    return Optimizer(
        keying=keying,
        root=min(names.optimizer_roots, key=len, default=root),
        kind=_kind(set(states), groups),
        states=tuple(sorted(states))[:64],
        parameters=len(owners),
        groups=groups,
        group_form=form,
        local_slices=_local_slices(draft, ours, tensors),
    )


def _keying(owners: set[str], groups: tuple[ParamGroup, ...], model: set[str]) -> Keying:
    named = owners or {p for g in groups for p in g.params or ()}
    if not named:
        return Keying.FQN if any(g.index is None for g in groups) else Keying.NONE
    by_number = all(n.isdecimal() for n in named) and not named & model
    return Keying.PARAM_ID if by_number else Keying.FQN


def _kind(states: set[str], groups: tuple[ParamGroup, ...]) -> str | None:
    options = {k.split(".", 1)[0] for g in groups for k in g.options}
    for kind, needs in KINDS:
        if needs <= states:
            if kind == "muon_or_sgd_momentum":
                return "muon" if "ns_steps" in options else "sgd_momentum"
            return kind
    if not states - {"step"} and {"momentum", "nesterov"} <= options:
        return "sgd"
    return None


def _groups(
    draft: Draft, names: Names, scalars: list[EntryDraft]
) -> tuple[tuple[ParamGroup, ...], GroupForm | None]:
    options: dict[int | None, dict[str, Plain]] = {}
    params: dict[int, tuple[str, ...]] = {}
    form: GroupForm | None = None
    for entry in scalars:
        root = names.optimizer_root(entry.key)
        rest = entry.key[len(root) + 1 :] if root else entry.key
        if not rest.startswith("param_groups"):
            continue
        rest = rest[len("param_groups") :].lstrip(".")
        if not rest:
            form = form or GroupForm.BLOB
            continue
        index, option = _split(rest)
        form = GroupForm.FLATTENED if index is None else GroupForm.NESTED
        if option == "params" and index is not None:
            if entry.elements is not None:
                params[index] = tuple(str(p) for p in entry.elements)
            continue
        own = options.setdefault(index, {})
        if entry.elements is not None and len(entry.elements) <= 8:
            own.update({f"{option}.{i}": v for i, v in enumerate(entry.elements)})
        elif len(own) < 64:
            own[option] = entry.value
    if form is GroupForm.NESTED and draft.format not in (Format.DCP, Format.DCP_PER_RANK):
        form = GroupForm.IN_PICKLE
    made = [
        ParamGroup(i, options.get(i, {}), params.get(i) if i is not None else None)
        for i in sorted({*options, *params}, key=lambda n: -1 if n is None else n)
    ]
    return tuple(made), form


def _split(rest: str) -> tuple[int | None, str]:
    """Index and option of `0.lr`, or None and the option of `emb.weight.lr`."""
    parts = rest.split(".")
    if parts[0].isdecimal() and len(parts[0]) < 7 and len(parts) > 1:
        if parts[1] in OPTIONS or len(parts) == 2:
            return int(parts[0]), ".".join(parts[1:])
        if not any(p in OPTIONS for p in parts[2:]):
            return int(parts[0]), ".".join(parts[1:])
    return None, parts[-1]


def _local_slices(draft: Draft, ours: list[Tensor], tensors: list[Tensor]) -> bool:
    """State whose shapes are those of no parameter: a rank's flat slices, kept as if they were whole."""
    if draft.format in PER_RANK or draft.format in (Format.ZERO, Format.ZERO_UNIVERSAL):
        return False
    model = [t for t in tensors if t.kind is Kind.MODEL]
    shapes = {t.shape for t in model}
    big = any(len(s) > 1 for s in shapes)
    by_name: Mapping[str, Tensor] = {t.name: t for t in model}
    wrong = 0
    for tensor in ours:
        if tensor.state in (None, "step") or len(tensor.shape) != 1 or len(tensor.chunks) > 1:
            continue
        owner = by_name.get(tensor.name)
        if (owner is not None and owner.shape != tensor.shape and len(owner.shape) > 1) or (
            owner is None and big and tensor.shape not in shapes and tensor.shape != (1,)
        ):
            wrong += 1
    factored = {t.state for t in ours} & {"exp_avg_sq_row", "exp_avg_sq_col", "row_var", "col_var"}
    quantized = {t.state for t in ours} & {"state1", "state2"}
    return wrong > 0 and not factored and not quantized
