"""What each key is: the model's, the optimizer's, or another state; and the parameter's own name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.ckpt.draft import Draft, EntryDraft, TensorDraft
from fsdp_doctor.subjects.checkpoint import Format, Kind, Layout, Prefix
from fsdp_doctor.subjects.checkpoint_state import Role
from fsdp_doctor.tables.optimizer_states import MODEL_ROOTS, PREFIXES, STATES

OPTIMIZER_PART = re.compile(r"(?:^|\.)(state|param_groups)(?=\.|$)")
OPTIMIZER_NAME = re.compile(r"(?:optim|optimizer|optimizers|opt)(?:_state_dict|_states?|_\d+)?", re.I)
RNG = re.compile(r"(?:^|[._/:])(?:rng|random|seed|cuda_rng|torch_rng|numpy_rng)", re.I)
DATALOADER = re.compile(r"(?:^|[._/:])(?:data_?loader|sampler|dataset|dl_state)", re.I)
SCHEDULER = re.compile(r"(?:^|[._/:])(?:lr_?)?sched(?:uler)?s?(?:[._/:]|$)|lr_scheduler", re.I)
OTHER_TOPS = re.compile(
    r"(?:train_state|trainer|loops|callbacks|scaler|grad_scaler|extra_state|metrics)(?:[._/:]|$)", re.I
)
STEPS = (
    "step",
    "global_step",
    "iteration",
    "iter",
    "num_steps",
    "current_step",
    "train_step",
    "global_steps",
)
EPOCHS = ("epoch", "current_epoch", "epochs")
RANK_IN_KEY = re.compile(r"(?:^|[._/])(?:dp_)?rank[_-]?(\d{1,9})(?=$|[._/])|shard_0\.(\d{1,9})\.\d+")


@dataclass(frozen=True, slots=True)
class Names:
    """How keys are understood."""

    optimizer_roots: tuple[str, ...]
    model_root: str

    def optimizer_root(self, key: str) -> str | None:
        """The root of optimizer state that a key belongs to."""
        for root in self.optimizer_roots:
            if not root or key.startswith(root + "."):
                rest = key[len(root) + 1 :] if root else key
                if root or rest.startswith(("state.", "param_groups")):
                    return root
        return None


def understand(draft: Draft) -> Names:
    """Find the roots of model and optimizer."""
    keys = [
        *(t.key for t in draft.tensors.values()),
        *(e.key for e in draft.entries),
    ]
    roots = _optimizer_roots(keys)
    names = Names(roots, "")
    model = [t for t in draft.tensors.values() if kind_of(draft, names, t) is Kind.MODEL]
    return Names(roots, _model_root(model))


def _optimizer_roots(keys: Iterable[str]) -> tuple[str, ...]:
    groups: set[str] = set()
    states: Counter[str] = Counter()
    for key in keys:
        found = OPTIMIZER_PART.search(key)
        if found is None:
            continue
        root = key[: found.start()]
        last = key.rsplit(".", 1)[-1]
        if found[1] == "param_groups":
            groups.add(root)
        elif last in STATES:
            states[root] += 1
    named = {r for r in states if OPTIMIZER_NAME.fullmatch(r.rsplit(".", 1)[-1])}
    # The longest first: "optimizer.state" of one may be within another.
    return tuple(sorted(groups | named | {r for r, n in states.items() if n > 1}, key=lambda r: (-len(r), r)))


def kind_of(draft: Draft, names: Names, tensor: TensorDraft) -> Kind:
    """Whose tensor it is."""
    part = next((p for p in draft.parts if p.path == tensor.part), None)
    top = tensor.path[0] if tensor.path else ""
    if names.optimizer_root(tensor.key) is not None or (
        len(tensor.path) > 1 and OPTIMIZER_NAME.fullmatch(top)
    ):
        return Kind.OPTIMIZER
    if draft.layout is Layout.MEGATRON and top.startswith("optimizer."):
        return Kind.OPTIMIZER
    if part is not None and part.holds is Kind.OPTIMIZER:
        return Kind.OPTIMIZER
    key = tensor.key
    if RNG.search(key) or DATALOADER.match(key) or SCHEDULER.match(key) or OTHER_TOPS.match(key):
        return Kind.OTHER
    if (
        len(tensor.path) <= 2
        and tensor.path[-1:]
        and tensor.path[-1] in (*STEPS, *EPOCHS)
        and not tensor.shape
    ):
        return Kind.OTHER
    return Kind.MODEL


def _model_root(model: list[TensorDraft]) -> str:
    """What stands before the model's names: the dictionary that a whole state dict was put into."""
    parents = Counter(t.path[:-1] for t in model)
    if not parents:
        return ""
    if len(parents) == 1:
        return ".".join(next(iter(parents)))
    tops = Counter(p[0] for p in parents.elements() if p)
    for name in MODEL_ROOTS:
        if name in tops:
            inner = Counter(p for p in parents.elements() if p[:1] == (name,))
            most, count = inner.most_common(1)[0]
            return ".".join(most) if count == sum(inner.values()) else name
    return ""


def parameter(names: Names, key: str) -> tuple[str, str | None]:
    """A key's parameter name, and the name of its state where it belongs to the optimizer."""
    root = names.optimizer_root(key)
    if root is None:
        start = names.model_root + "."
        return (key[len(start) :] if names.model_root and key.startswith(start) else key), None
    rest = key[len(root) + 1 :] if root else key
    if not rest.startswith("state."):
        return rest, None
    rest = rest[len("state.") :]
    first, _, after = rest.partition(".")
    if first in STATES and after:  # Megatron puts the state's name first
        return after, first
    name, _, state = rest.rpartition(".")
    return (name, state) if name else (rest, None)


def role_of(names: Names, entry: EntryDraft) -> Role:
    """What a value is for."""
    key = entry.key
    root = names.optimizer_root(key)
    if root is not None:
        rest = key[len(root) + 1 :] if root else key
        return Role.PARAM_GROUP if rest.startswith("param_groups") else Role.OPTIMIZER
    if RNG.search(key):
        return Role.RNG
    if DATALOADER.search(key):
        return Role.DATALOADER
    if SCHEDULER.search(key):
        return Role.SCHEDULER
    last = entry.path[-1] if entry.path else key
    if len(entry.path) <= 3 and type(entry.value) in (int, float):
        if last in STEPS:
            return Role.STEP
        if last in EPOCHS:
            return Role.EPOCH
    return Role.OTHER


def rank_in_key(key: str) -> int | None:
    """The rank that a key carries, such as `dataloader.dp_rank_3`."""
    found = RANK_IN_KEY.search(key)
    return int(found[1] or found[2]) if found else None


def prefixes(draft: Draft, model_names: list[str]) -> tuple[Prefix, ...]:
    """Wrappers' prefixes that the model's names carry."""
    found = []
    for text in PREFIXES:
        leading = sum(n.startswith(text) for n in model_names)
        within = 0 if text in ("model.", "module.") else sum("." + text in n for n in model_names)
        if leading and (text != "model." or leading == len(model_names)):
            found.append(Prefix(text, leading))
        if within:
            found.append(Prefix(text, within, leading=False))
    if draft.format is Format.ZERO:
        return ()
    return tuple(found)
