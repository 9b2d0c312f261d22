"""Files side by side: of the ranks of one save, of one model in numbers, or checkpoints of their own."""

from __future__ import annotations

import re

from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.formats import legacy, safetensors
from fsdp_doctor.ckpt.formats.frameworks import RNG, STATE
from fsdp_doctor.ckpt.formats.rank_files import add_values, read_ranks
from fsdp_doctor.ckpt.formats.torch_files import read_full
from fsdp_doctor.ckpt.rank_names import RankSet, rank_sets
from fsdp_doctor.ckpt.store import Node
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind, Layout
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource

TORCH_NAMES = re.compile(r".+\.(pt|pth|bin|ckpt|tar|model|pkl)", re.I)


def sets_of_ranks(draft: Draft) -> bool:
    """Sets of torch.save files with a rank in their names, in this folder or one below (verl's `actor`)."""
    best: list[RankSet] = []
    folders = ["", *sorted(n.path for n in draft.nodes.values() if n.folder and "/" not in n.path)]
    for folder in folders:
        paths = [n.path for n in draft.below(folder) if _torch_name(n)]
        best = [s for s in rank_sets(paths) if s.named]
        if best:
            break
    if best:
        _read_sets(draft, best)
    return bool(best)


def _read_sets(draft: Draft, sets: list[RankSet]) -> None:
    """Read sets of one save. The one with the weights decides the format, and is read first."""
    sets.sort(key=lambda s: (_not_weights(s.template), s.template))
    form: Format | None = None
    for ranks in sets:
        name = ranks.template.rsplit("/", 1)[-1]
        if _not_weights(ranks.template) == 2:
            for rank, path in sorted(ranks.ranks.items()):
                add_values(draft, path, rank)
            continue
        holds = Kind.OPTIMIZER if name.lower().startswith("optim") else Kind.MODEL
        read_ranks(draft, ranks, holds, "" if len(sets) == 1 else ranks.template)
        form = form or draft.format
    if form is not None:
        draft.format = form


def _not_weights(template: str) -> int:
    name = template.rsplit("/", 1)[-1].lower()
    if re.search(r"rng|random|extra_state|scheduler|dataloader|sampler", name):
        return 2
    return 1 if "optim" in name else 0


def _torch_name(node: Node) -> bool:
    return bool(TORCH_NAMES.fullmatch(node.name)) and not node.folder and not RNG.fullmatch(node.name)


def whole(draft: Draft) -> bool:
    """Whole tensors: safetensors or torch.save, alone, numbered or with an index."""
    nodes = [n for n in draft.below("") if not n.folder]
    names = {n.name for n in nodes}
    tensors = [n for n in nodes if n.name.endswith(".safetensors")]
    index = next((n for n in sorted(names) if n.endswith(".safetensors.index.json")), None)
    if tensors or index:
        safetensors.read_whole(draft, tensors, "", index)
        draft.layout = Layout.HF if draft.layout is Layout.PLAIN and "config.json" in names else draft.layout
        return True
    skip = (*(n for n in names if STATE.fullmatch(n)), "training_args.bin")
    files = [n for n in nodes if _torch_name(n) and n.name not in skip]
    if not files:
        return False
    index = next((n for n in sorted(names) if n.endswith(".bin.index.json")), None)
    numbered = [n for n in files if safetensors.NUMBERED.fullmatch(n.name)]
    if numbered or index or len(files) == 1:
        _torch_whole(draft, numbered or files)
        return True
    return _several_files(draft, files)


def _torch_whole(draft: Draft, files: list[Node]) -> None:
    have = {n.path: n for n in files}
    for path in sorted(have.keys() | safetensors.promised(have)):
        if path not in have:
            draft.file(path, FileRole.DATA)
            draft.problem(ProblemKind.FILE_MISSING, Harm.BROKEN, f"{path} is missing", path)
            continue
        with_head = _head(draft, path)
        if legacy.is_legacy(with_head):
            legacy.read(draft, path)
        else:
            read_full(draft, path)


def _head(draft: Draft, path: str) -> bytes:
    try:
        with draft.store.open(path) as file:
            return file.read(16)
    except OSError:
        return b""


def _several_files(draft: Draft, files: list[Node]) -> bool:
    """Several torch.save files: model and optimizer by their names, or checkpoints beside each other."""
    known = [
        n for n in files if re.match(r"(model|pytorch_model|consolidated|ckpt|checkpoint)\b", n.name, re.I)
    ]
    optim = [n for n in files if n not in known and re.match(r"(optim|opt)", n.name, re.I)]
    if len(known) == 1 and len(known) + len(optim) <= len(files):
        for node in (*known, *optim):
            read_full(draft, node.path, Kind.MODEL if node in known else Kind.OPTIMIZER, node.path)
        for node in files:
            if node not in known and node not in optim:
                draft.file(node.path, FileRole.OTHER)
        return True
    sets = [
        s for s in rank_sets(n.path for n in files) if len(s.ranks) > 1 and 0 in s.ranks and not s.missing
    ]
    parted = [s for s in sets if _parted(draft, s)]
    if parted:
        same = [s for s in sets if s.ranks.keys() == parted[0].ranks.keys()]
        _read_sets(draft, same)
        return True
    shown = ", ".join(sorted(n.name for n in files)[:4])
    words = f"{len(files)} torch.save files ({shown} …) and nothing says which belong together: give one"
    draft.problem(ProblemKind.SEVERAL, Harm.BROKEN, words)
    draft.world = World(None, WorldSource.NONE)
    return True


def _parted(draft: Draft, ranks: RankSet) -> bool:
    """Whether the file of rank 0 holds parts of tensors: its name alone does not say that it is a rank's."""
    probe = Draft(draft.store, draft.nodes.values())
    read_file = read_ranks(probe, RankSet(ranks.template, {0: ranks.ranks[0]}, False))
    return bool(read_file) and probe.format is not Format.TORCH_PER_RANK
