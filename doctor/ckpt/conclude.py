"""From a draft to the index: keys understood, the world and the step inferred."""

from __future__ import annotations

from typing import TypeVar

from fsdp_doctor.ckpt.draft import Draft, EntryDraft, FileDraft, TensorDraft
from fsdp_doctor.ckpt.file_problems import judge_files
from fsdp_doctor.ckpt.limits import KEY_LENGTH
from fsdp_doctor.ckpt.naming import (
    EPOCHS,
    STEPS,
    Names,
    kind_of,
    parameter,
    prefixes,
    rank_in_key,
    role_of,
    understand,
)
from fsdp_doctor.ckpt.optimizer_facts import optimizer_of
from fsdp_doctor.ckpt.path import text
from fsdp_doctor.ckpt.trust import trust_of
from fsdp_doctor.ckpt.world_facts import world_of
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, File, Format, Global, Kind, Layout, Tensor
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_state import Entry, Role

T = TypeVar("T")
PLAIN_DCP = (Format.DCP, Format.DCP_PER_RANK)


def conclude(draft: Draft, seconds: float) -> CheckpointIndex:
    """The index."""
    names = understand(draft)
    tensors = [_tensor(draft, names, t) for t in draft.tensors.values()]
    entries = [_entry(names, e) for e in draft.entries]
    model = [t for t in tensors if t.kind is Kind.MODEL]
    optimizer = optimizer_of(draft, names, tensors)
    flat = sum(t.key.endswith("_flat_param") for t in tensors) or sum(
        t.name.endswith("_flat_param") for t in tensors
    )
    world = world_of(draft, tensors)
    _slices(draft, model, flat)
    if optimizer.local_slices:
        draft.problem(
            ProblemKind.LOCAL_SLICES,
            Harm.BROKEN,
            "optimizer state holds slices of single ranks, stored as if they were whole: what other "
            "ranks held is lost",
            tensors=[t.key for t in tensors if t.kind is Kind.OPTIMIZER and t.state not in (None, "step")],
        )
    _torchtitan(draft, entries)
    step, source = _step(draft, entries)
    judge_files(draft)
    epoch = draft.epoch if draft.epoch is not None else _epoch(draft, entries)
    keys = [*(t.key for t in tensors), *(e.key for e in entries)]
    return CheckpointIndex(
        path=text(draft.store.root),
        format=draft.format,
        layout=draft.layout,
        parts=tuple(draft.parts),
        tensors=tuple(tensors),
        entries=tuple(entries),
        files=tuple(_file(f) for f in draft.files),
        globals=tuple(Global(text(n), c, tuple(map(text, f)), trust_of(n)) for n, c, f in draft.named()),
        problems=tuple(draft.problems),
        model_root=text(names.model_root),
        roots=tuple(dict.fromkeys(k.split(".", 1)[0] for k in keys))[:64],
        prefixes=prefixes(draft, [t.name for t in model]),
        optimizer=optimizer,
        world=world,
        step=step,
        step_source=source,
        epoch=epoch,
        dcp=draft.dcp,
        manifest=draft.manifest,
        flat_parameters=flat,
        bytes=sum(t.bytes for t in tensors if t.view_of is None),
        read_seconds=seconds,
        scanned_at=draft.now,
        truncated=tuple(draft.truncated),
    )


def _tensor(draft: Draft, names: Names, made: TensorDraft) -> Tensor:
    kind = kind_of(draft, names, made)
    name, state = parameter(names, made.key)
    size = made.bytes
    if made.local and made.local_shapes:
        per = size // max(1, _elements(made.shape))
        size = sum(_elements(s) for _, s in made.local_shapes) * per
    return Tensor(
        key=text(made.key),
        shape=made.shape,
        dtype=made.dtype,
        kind=kind,
        name=text(name),
        state=None if state is None else text(state),
        part=text(made.part),
        container=made.container,
        chunks=made.columns,
        splits=made.splits or _splits(made),
        placements=made.placements,
        mesh=made.mesh,
        mesh_names=made.mesh_names,
        local_shapes=tuple(made.local_shapes),
        requires_grad=made.requires_grad,
        bytes=size,
        view_of=None if made.view_of is None else text(made.view_of),
        contiguous=made.contiguous,
    )


def _splits(made: TensorDraft) -> tuple[int, ...]:
    width = 2 * len(made.shape) + 4
    return tuple(len(set(made.place[d::width])) for d in range(len(made.shape))) if made.place else ()


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _entry(names: Names, made: EntryDraft) -> Entry:
    value = text(made.value) if isinstance(made.value, str) else made.value
    if isinstance(value, float) and value != value:
        value = "nan"
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        value = str(value)
    rank = made.rank if made.rank is not None else rank_in_key(made.key)
    return Entry(
        key=text(made.key[:KEY_LENGTH]),
        role=role_of(names, made),
        value=value,
        type=text(made.type),
        rank=rank,
        part=text(made.part),
        file=made.file,
        start=made.start,
        length=made.length,
        value_read=made.value_read,
        differs=made.differs,
    )


def _file(made: FileDraft) -> File:
    node = made.node
    unreadable = None
    if node is not None:
        unreadable = node.unreadable or node.special or ("a folder" if node.folder else None)
    return File(
        path=text(made.path),
        size=None if node is None else node.size,
        modified=None if node is None else node.modified,
        role=made.role,
        rank=made.rank,
        part=text(made.part),
        referenced=made.referenced,
        needed=made.needed,
        items=made.items,
        steps=tuple(sorted(made.steps)),
        link=None if node is None or node.link is None else text(node.link),
        unreadable=unreadable,
    )


def _slices(draft: Draft, model: list[Tensor], flat: int) -> None:
    """FSDP1's LOCAL_STATE_DICT with use_orig_params=True through DCP: ordinary names of one rank's slices."""
    if draft.format not in PLAIN_DCP or not flat:
        return
    own = [t for t in model if not t.name.endswith("_flat_param")]
    # With flat parameters only buffers have names of their own, and these are whole.
    sliced = [t for t in own if len(t.shape) == 1 and len(t.chunks) <= 1 and _parameter(t)]
    if sliced and all(len(t.shape) == 1 for t in own if _parameter(t)):
        draft.problem(
            ProblemKind.LOCAL_SLICES,
            Harm.BROKEN,
            f"{len(sliced)} parameters beside {flat} _flat_param keys hold one rank's slice each "
            f"({sliced[0].key} {list(sliced[0].shape)}), stored as if it were the whole: the rest is lost",
            tensors=[t.key for t in sliced],
        )


def _parameter(tensor: Tensor) -> bool:
    return tensor.name.endswith(("weight", "bias")) or 0 in tensor.shape


def _torchtitan(draft: Draft, entries: list[Entry]) -> None:
    tops = {e.key.split(".", 1)[0] for e in entries} | {
        t.key.split(".", 1)[0] for t in draft.tensors.values()
    }
    if draft.layout is Layout.PLAIN and {"train_state", "lr_scheduler", "optimizer"} <= tops:
        draft.layout = Layout.TORCHTITAN


def _step(draft: Draft, entries: list[Entry]) -> tuple[int | None, str]:
    if draft.manifest is not None and draft.manifest.step is not None:
        return draft.manifest.step, "manifest"
    if draft.step is not None:
        return draft.step, draft.step_source
    named: dict[str, int] = {}
    for entry in entries:
        if entry.role is Role.STEP and isinstance(entry.value, (int, float)) and entry.value == entry.value:
            named[entry.key] = int(entry.value)
    for key, number in draft.numbers.items():
        if key.count(".") <= 1 and key.rsplit(".", 1)[-1] in STEPS:
            named.setdefault(key, number)
    if named:
        key = min(named, key=lambda k: (k.count("."), STEPS.index(k.rsplit(".", 1)[-1].rsplit(":", 1)[-1])))
        return named[key], f"key {key}"
    if draft.folder_step is not None:
        return draft.folder_step
    steps = {s for f in draft.files for s in f.steps}
    return (max(steps), "optimizer state") if steps else (None, "")


def _epoch(draft: Draft, entries: list[Entry]) -> float | None:
    for entry in entries:
        if entry.role is Role.EPOCH and isinstance(entry.value, (int, float)):
            return float(entry.value)
    for key, number in draft.numbers.items():
        if key.rsplit(".", 1)[-1] in EPOCHS:
            return float(number)
    return None
