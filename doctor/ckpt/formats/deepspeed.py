"""DeepSpeed: ZeRO's files per rank, and Universal checkpoints with a folder per parameter."""

from __future__ import annotations

import re

from fsdp_doctor.ckpt.draft import Draft, TensorDraft
from fsdp_doctor.ckpt.formats.rank_files import add_values
from fsdp_doctor.ckpt.torch_content import key_of
from fsdp_doctor.ckpt.torch_file import TorchFile
from fsdp_doctor.ckpt.torch_file import read as read_file
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind, Layout
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource

MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,9})_)?mp_rank_(\d{1,9})_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,9})_mp_rank_(\d{1,9})_optim_states\.pt")
EXPERT = re.compile(
    r"layer_\d+_expert_\d+_mp_rank_\d+_model_states\.pt|expp_rank_\d+_mp_rank_\d+_optim_states\.pt"
)
TAG = re.compile(r"global_step(\d{1,18})")


def in_folder(names: set[str]) -> bool:
    """Whether these are the names of a tag's folder."""
    return any(MODEL.fullmatch(n) or OPTIMIZER.fullmatch(n) for n in names)


def read(draft: Draft, folder: str) -> None:
    """One tag: every rank's part of the optimizer, and the model per tensor-parallel rank."""
    draft.format, draft.layout = Format.ZERO, Layout.DEEPSPEED
    model, optim = {}, {}
    for node in draft.below(folder):
        found, ours = MODEL.fullmatch(node.name), OPTIMIZER.fullmatch(node.name)
        if found:
            model[int(found[1] or -1), int(found[2])] = node.path
        elif ours:
            optim[int(ours[1]), int(ours[2])] = node.path
        elif EXPERT.fullmatch(node.name):
            draft.file(node.path, FileRole.DATA, folder)
    files: list[TorchFile] = []
    for (data_rank, model_rank), path in sorted({**model}.items()):
        files += _one(draft, path, folder, max(data_rank, 0), model_rank)
    for (data_rank, model_rank), path in sorted(optim.items()):
        files += _one(draft, path, folder, data_rank, model_rank)
    data = [d for d, _ in optim] or [d for d, _ in model if d >= 0]
    parallel = 1 + max((m for _, m in [*optim, *model]), default=0)
    said = next((n for f in files if (n := _said(f)) is not None), None)
    size = (1 + max(data)) if data else said
    degree = max(size or 0, said or 0) or None
    for m in range(parallel if data else 0):
        missing = [d for d in range(min(degree or 0, 1 << 20)) if optim and (d, m) not in optim]
        if missing:
            draft.problem(
                ProblemKind.RANK_MISSING,
                Harm.BROKEN,
                f"optimizer states of data-parallel ranks {', '.join(map(str, missing[:6]))} (mp_rank {m}) "
                f"are missing: {degree} ranks saved",
                f"{folder}/" if folder else "",
                rank=missing[0],
            )
    world = degree * parallel if degree else None
    ranks = tuple(sorted({d for d, _ in optim}))
    draft.world = World(
        world,
        WorldSource.RANK_FILES if data else (WorldSource.KEYS if said else WorldSource.NONE),
        f"{degree} data-parallel x {parallel} tensor-parallel ranks in the file names" if degree else "",
        writers=ranks,
        present=ranks,
        shard_degree=degree,
    )
    tag = TAG.fullmatch((folder or draft.store.root.rstrip("/")).rsplit("/", 1)[-1])
    if tag:
        draft.step, draft.step_source = int(tag[1]), "folder name"
    draft.part(folder, Format.ZERO, Kind.MODEL, len(model) + len(optim))


def _one(draft: Draft, path: str, folder: str, data_rank: int, model_rank: int) -> list[TorchFile]:
    index = draft.file(path, FileRole.DATA, folder)
    draft.files[index].rank = data_rank
    file = read_file(draft, path, FileRole.DATA, folder)
    if file is None:
        return []
    for where, tensor in file.content.tensors:
        made = TensorDraft(key_of(where), where, tensor.shape, tensor.dtype, folder, tensor.container)
        made.local = True
        known = draft.tensor(made)
        known.local_shapes.append((data_rank, tensor.shape))
        if known is made:
            known.add((0,) * len(tensor.shape), tensor.shape, index, rank=data_rank)
    if data_rank == 0 and model_rank == 0:
        for entry in file.content.entries:
            entry.part, entry.file = folder, index
            draft.entry(entry)
    return [file]


def _said(file: TorchFile) -> int | None:
    for entry in file.content.entries:
        if entry.key == "dp_world_size" and type(entry.value) is int and 0 < entry.value < 1 << 20:
            return entry.value
    return None


def read_universal(draft: Draft, folder: str) -> None:
    """`zero/NAME/fp32.pt`, `exp_avg.pt` …: every parameter whole, in a folder of its own."""
    draft.format, draft.layout = Format.ZERO_UNIVERSAL, Layout.DEEPSPEED
    base = f"{folder}/zero/" if folder else "zero/"
    count = 0
    for node in sorted(draft.nodes.values(), key=lambda n: n.path):
        inner = node.path[len(base) :] if node.path.startswith(base) else ""
        if inner.count("/") != 1 or not inner.endswith(".pt") or node.folder:
            continue
        name, _, state = inner[:-3].partition("/")
        file = read_file(draft, node.path, FileRole.DATA, folder)
        count += 1
        for where, tensor in file.content.tensors if file is not None else ():
            if where[-1:] not in ((), ("param",)):
                continue
            key = f"module.{name}" if state == "fp32" else f"optimizer.state.{name}.{state}"
            path = ("module", name) if state == "fp32" else ("optimizer", "state", name, state)
            made = TensorDraft(key, path, tensor.shape, tensor.dtype, folder)
            made.add((0,) * len(tensor.shape), tensor.shape, draft.file(node.path))
            draft.tensor(made)
    for node in draft.below(folder):
        if MODEL.fullmatch(node.name):
            add_values(draft, node.path, None, folder)
    draft.world = World(None, WorldSource.NONE, "parameters are whole: any world size loads them")
    draft.part(folder, Format.ZERO_UNIVERSAL, Kind.MODEL, count)
