"""An index for people: what it is, who saved it, what it holds, as a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fsdp_doctor.cli.ckpt.tree import grow, rows, size
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format, Kind, Layout, Tensor, Trust
from fsdp_doctor.subjects.checkpoint_state import Keying, Role

FORMATS = {
    Format.DCP: "DCP (torch.distributed.checkpoint)",
    Format.DCP_PER_RANK: "DCP saved without collectives: metadata per rank",
    Format.DCP_SAFETENSORS: "DCP in sharded safetensors",
    Format.SAFETENSORS: "safetensors, whole tensors",
    Format.TORCH_FULL: "torch.save, whole tensors",
    Format.LOCAL_PER_RANK: "FSDP1 LOCAL_STATE_DICT, a file per rank",
    Format.SHARDED_PER_RANK: "FSDP1 SHARDED_STATE_DICT, a torch.save file per rank",
    Format.DTENSOR_PER_RANK: "DTensors, a torch.save file per rank",
    Format.TORCH_PER_RANK: "plain tensors, a torch.save file per rank",
    Format.ZERO: "DeepSpeed ZeRO",
    Format.ZERO_UNIVERSAL: "DeepSpeed Universal",
    Format.TORCH_LEGACY: "torch.save of before torch 1.6, whole tensors",
    Format.UNKNOWN: "no known checkpoint",
}
LAYOUTS = {
    Layout.ACCELERATE: "accelerate",
    Layout.TRAINER: "the Hugging Face Trainer",
    Layout.LIGHTNING: "Lightning",
    Layout.TORCHTITAN: "torchtitan",
    Layout.VERL: "verl",
    Layout.DEEPSPEED: "DeepSpeed",
    Layout.MEGATRON: "Megatron",
    Layout.HF: "transformers",
}
LINES = 400
"""Lines of the tree."""
OPTIONS = ("lr", "initial_lr", "weight_decay", "betas.0", "betas.1", "eps", "momentum")


def render(
    index: CheckpointIndex, shown: list[Tensor], style: Style, depth: int | None, verified: str = ""
) -> str:
    """The summary and the tree of the tensors that the filters leave."""
    page = Page(style)
    by = f", by {LAYOUTS[index.layout]}" if index.layout in LAYOUTS else ""
    page.paragraph([(index.path, "bold"), (f": {FORMATS[index.format]}{by}", "")], hang=2)
    for label, text in _summary(index):
        page.labelled(label, text)
    page.labelled("verified", verified)
    page.blank()
    if shown:
        _tree(page, shown, depth)
        page.blank()
    return page.text()


def _summary(index: CheckpointIndex) -> Iterable[tuple[str, str]]:
    yield "saved by", _world(index)
    if index.step is not None or index.epoch is not None:
        step = f"{index.step} ({index.step_source})" if index.step is not None else "not known"
        yield "step", step + (f", epoch {index.epoch:g}" if index.epoch is not None else "")
    if index.tensors:
        yield "tensors", _tensors(index.tensors)
    if index.optimizer.keying is not Keying.NONE or index.optimizer.groups:
        yield "optimizer", _optimizer(index)
    elif index.tensors:
        yield "optimizer", "none"
    other = _other(index)
    if other:
        yield "also", other
    if index.prefixes:
        yield "prefixes", ", ".join(f"{p.text} on {p.keys} names" for p in index.prefixes)
    if index.files:
        yield "files", _files(index)
    yield "saved to", (index.dcp.saved_to or "") if index.dcp is not None else ""
    refused = [g.name for g in index.globals if g.trust is not Trust.TORCH]
    if refused:
        more = f" and {len(refused) - 6} more" if len(refused) > 6 else ""
        yield "pickles", f"name {', '.join(refused[:6])}{more}: weights_only=True refuses these"
    for cut in index.truncated:
        yield "left out", cut


def _world(index: CheckpointIndex) -> str:
    world = index.world
    if world.size is None:
        return world.detail or f"{world.source.value}: any number of ranks"
    plural = "s" if world.size != 1 else ""
    words = f"{world.size} rank{plural} ({world.detail or world.source.value})"
    if not world.certain:
        words = f"at least {words}" if world.at_least else f"{words}, not certain"
    if world.shard_degree and world.shard_degree > 1:
        words += f"; tensors are cut into {world.shard_degree}"
    elif index.tensors:
        words += "; tensors are whole"
    if world.replicas:
        words += f", {world.replicas} replicas (HYBRID_SHARD)"
    if world.mesh:
        names = f" ({', '.join(world.mesh_names)})" if world.mesh_names else ""
        words += f"; mesh {'x'.join(map(str, world.mesh))}{names}"
    return words


def _tensors(tensors: Iterable[Tensor]) -> str:
    found = list(tensors)
    words = [f"{len(found)}, {size(sum(t.bytes for t in found if t.view_of is None))}"]
    for kind, name in ((Kind.MODEL, "model"), (Kind.OPTIMIZER, "optimizer"), (Kind.OTHER, "other")):
        own = [t for t in found if t.kind is kind]
        if own:
            dtypes = Counter(t.dtype for t in own).most_common()
            kinds = " ".join(d for d, _ in dtypes[:3]) + (" …" if len(dtypes) > 3 else "")
            words.append(
                f"{name} {len(own)} ({size(sum(t.bytes for t in own if t.view_of is None))}, {kinds})"
            )
    return "; ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0]


def _optimizer(index: CheckpointIndex) -> str:
    own = index.optimizer
    keyed = {
        Keying.FQN: "keyed by names",
        Keying.PARAM_ID: "keyed by integers: it depends on the parameters' order",
        Keying.NONE: "without state",
    }[own.keying]
    words = [f"{own.kind or 'of unknown kind'}, {keyed}"]
    if own.parameters:
        words.append(f"{own.parameters} parameters with {', '.join(own.states[:6])}")
    for group in own.groups[:3]:
        options = [f"{k} {group.options[k]}" for k in OPTIONS if group.options.get(k) is not None]
        which = f"group {group.index}" if group.index is not None else "options per parameter"
        words.append(f"{which}: {', '.join(options) or 'values not read'}")
    if len(own.groups) > 3:
        words.append(f"{len(own.groups) - 3} more groups")
    return "; ".join(words)


def _other(index: CheckpointIndex) -> str:
    roles = Counter(e.role for e in index.entries if e.role not in (Role.PARAM_GROUP, Role.OPTIMIZER))
    names = {
        Role.SCHEDULER: "scheduler",
        Role.RNG: "RNG state",
        Role.DATALOADER: "dataloader state",
        Role.STEP: "step",
        Role.EPOCH: "epoch",
        Role.OTHER: "other values",
    }
    return ", ".join(
        f"{names[r]} ({n})" for r, n in sorted(roles.items(), key=lambda i: list(names).index(i[0]))
    )


def _files(index: CheckpointIndex) -> str:
    there = [f for f in index.files if f.size is not None]
    missing = len([f for f in index.files if f.size is None and f.unreadable is None])
    words = f"{len(there)}, {size(sum(f.size or 0 for f in there))}"
    idle = [f for f in there if not f.referenced and f.rank is not None]
    if missing:
        words += f"; {missing} missing"
    return words + (f"; {len(idle)} not named by the metadata" if idle else "")


def _tree(page: Page, shown: list[Tensor], depth: int | None) -> None:
    for count, (level, label, words) in enumerate(rows(grow(shown), depth)):
        if count >= LINES:
            page.paragraph([("… more: use --filter, or --format json for all", "dim")], first="  ", hang=2)
            return
        indent = "  " * (level + 1)
        page.paragraph([(f"{label}  ", "bold"), (words, "")], first=indent, hang=len(indent))
