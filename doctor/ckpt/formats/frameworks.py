"""What frameworks put beside the weights: RNG states, schedulers, trainer states, tags."""

from __future__ import annotations

import re

from fsdp_doctor.ckpt.draft import Draft, EntryDraft
from fsdp_doctor.ckpt.formats.rank_files import add_values
from fsdp_doctor.ckpt.json_file import read_json
from fsdp_doctor.subjects.checkpoint import FileRole, Layout
from fsdp_doctor.subjects.checkpoint_manifest import MANIFEST_NAME
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource

RNG = re.compile(r"(?:random_states|rng_state)_(\d{1,9})\.(?:pkl|pth)")
STATE = re.compile(
    r"(?:scheduler|lr_scheduler|sampler|dl_state_dict|scaler|custom_checkpoint)(?:_\d{1,3})?\.(?:bin|pt|pkl)"
    r"|rng_state\.pth|meta\.pt|common\.pt"
)
NEVER_READ = ("training_args.bin",)
"""Arbitrary pickles of whole objects that nothing here needs."""
ACCELERATE_MODEL = re.compile(r"(?:pytorch_model|model)_fsdp_(\d{1,4})")
ACCELERATE_OPTIMIZER = re.compile(r"optimizer_(\d{1,4})")
ACCELERATE_FILE = re.compile(r"pytorch_model_fsdp(?:_(\d{1,4}))?(?:_rank(\d{1,9}))?\.bin")
OPTIMIZER_FILE = re.compile(r"optimizer(?:_(\d{1,4}))?(?:_rank(\d{1,9}))?\.(?:bin|pt|pth)")


def layout_of(draft: Draft) -> Layout:
    """Whose folder it is, from the names in it."""
    names = {n.name for n in draft.below("")}
    if "trainer_state.json" in names:
        return Layout.TRAINER
    if any(ACCELERATE_MODEL.fullmatch(n) or ACCELERATE_FILE.fullmatch(n) for n in names) or any(
        n.startswith("random_states_") for n in names
    ):
        return Layout.ACCELERATE
    if "meta.pt" in names and ".metadata" in names:
        return Layout.LIGHTNING
    if "common.pt" in names or ("metadata.json" in names and ".metadata" in names):
        return Layout.MEGATRON
    if any(
        n.startswith(("model_world_size_", "optim_world_size_", "extra_state_world_size_")) for n in names
    ):
        return Layout.VERL
    if "config.json" in names or "model.safetensors.index.json" in names:
        return Layout.HF
    return Layout.PLAIN


def beside(draft: Draft) -> None:
    """Read what lies beside the weights in the checkpoint's own folder."""
    ranks: list[int] = []
    for node in sorted(draft.below(""), key=lambda n: n.path):
        found = RNG.fullmatch(node.name)
        if found:
            ranks.append(int(found[1]))
            _rng(draft, node.path, int(found[1]))
        elif STATE.fullmatch(node.name) and node.regular:
            add_values(draft, node.path)
        elif node.name in NEVER_READ:
            draft.file(node.path, FileRole.OTHER)
        elif node.name == "trainer_state.json" and node.regular:
            _trainer(draft, node.path)
        elif node.name == "metadata.json" and draft.layout is Layout.MEGATRON and node.regular:
            _megatron(draft, node.path)
        elif node.name == MANIFEST_NAME:
            draft.file(node.path, FileRole.METADATA)
    if ranks:
        _rank_states(draft, ranks)


def _rng(draft: Draft, path: str, rank: int) -> None:
    """RNG states name numpy and random objects; that a file is there matters, its content does not."""
    index = draft.file(path, FileRole.STATE)
    draft.files[index].rank, draft.files[index].referenced = rank, True
    name = path.rsplit("/", 1)[-1]
    draft.entry(EntryDraft(name, (name,), type="rng state", rank=rank, file=index))


def _rank_states(draft: Draft, ranks: list[int]) -> None:
    count = max(ranks) + 1
    missing = [r for r in range(min(count, 1 << 20)) if r not in ranks]
    kind = "random_states_R.pkl" if draft.layout is Layout.ACCELERATE else "rng_state_R.pth"
    world = World(
        count,
        WorldSource.RANK_FILES,
        f"highest rank {count - 1} in {kind}",
        certain=not missing,
        at_least=count,
    )
    if draft.world is None or draft.world.size is None:
        draft.world = world
    if missing:
        draft.problem(
            ProblemKind.RANK_MISSING,
            Harm.DOUBT,
            f"{kind} of rank {', '.join(map(str, missing[:6]))} is missing: on that rank neither the RNG "
            "state nor what is kept beside it is restored",
            kind.replace("R.", f"{missing[0]}."),
            rank=missing[0],
        )


def _trainer(draft: Draft, path: str) -> None:
    draft.files[draft.file(path, FileRole.STATE)].referenced = True
    top = read_json(draft, path, Harm.DOUBT)
    if not isinstance(top, dict):
        return
    step, epoch = top.get("global_step"), top.get("epoch")
    if type(step) is int and 0 <= step < 1 << 62:
        draft.step, draft.step_source = step, "trainer_state.json"
    if isinstance(epoch, (int, float)) and epoch == epoch:
        draft.epoch = float(epoch)
    for key in ("global_step", "epoch", "max_steps", "num_train_epochs", "train_batch_size"):
        value = top.get(key)
        if type(value) in (int, float):
            draft.entry(
                EntryDraft(
                    f"trainer_state.json:{key}", ("trainer_state.json", key), value, type=type(value).__name__
                )
            )


def _megatron(draft: Draft, path: str) -> None:
    draft.files[draft.file(path, FileRole.METADATA)].referenced = True
    top = read_json(draft, path, Harm.DOUBT)
    if isinstance(top, dict):
        for key, value in list(top.items())[:20]:
            if isinstance(value, (str, int, float)):
                draft.entry(
                    EntryDraft(f"metadata.json:{key}", ("metadata.json", key), str(value)[:200], type="str")
                )
