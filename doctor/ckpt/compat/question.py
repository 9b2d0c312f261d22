"""One checkpoint, one target and one way of loading: what every rule is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format, Kind, Tensor
from fsdp_doctor.subjects.checkpoint_state import Keying
from fsdp_doctor.subjects.load_target import Api, LoadApi, LoadTarget, TargetModel
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

DCP = frozenset({Format.DCP, Format.DCP_PER_RANK, Format.DCP_SAFETENSORS})
WHOLE = frozenset({Format.TORCH_FULL, Format.TORCH_LEGACY, Format.SAFETENSORS})
PER_RANK = frozenset(
    {Format.LOCAL_PER_RANK, Format.SHARDED_PER_RANK, Format.DTENSOR_PER_RANK, Format.TORCH_PER_RANK}
)
FSDP1 = frozenset({Api.FSDP1, Api.FSDP1_MESH})
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What wrappers put into names and get_state_dict takes out (state_dict.py, `_get_fqns`)."""
EXAMPLES = 8


@dataclass(frozen=True)
class Question:
    """Cached views of the index are per question; an index of a million tensors is walked once for each."""

    index: CheckpointIndex
    target: LoadTarget
    api: Api
    load_api: LoadApi

    @property
    def saved_on(self) -> int | None:
        """Ranks that saved it."""
        return self.index.world.size

    @property
    def ranks(self) -> int | None:
        """Ranks that load it."""
        return self.target.world_size

    @property
    def model(self) -> TargetModel | None:
        """The model that loads it, where it was named."""
        return self.target.model

    @property
    def asks_optimizer(self) -> bool:
        """Whether the load asks for optimizer state: said, or there is some."""
        if self.target.model_only:
            return False
        return self.target.optimizer is not None or self.index.optimizer.keying is not Keying.NONE

    @property
    def sharded(self) -> bool:
        """Whether the model that loads is FSDP's."""
        return self.api in (Api.FSDP1, Api.FSDP1_MESH, Api.FSDP2)

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """Parameters and buffers of the checkpoint."""
        return tuple(t for t in self.index.tensors if t.kind is Kind.MODEL)

    @cached_property
    def saved(self) -> dict[str, Tensor]:
        """The same by name."""
        return {t.name or t.key: t for t in self.weights}

    @cached_property
    def with_state(self) -> frozenset[str]:
        """Names (or integers) for which the checkpoint holds optimizer state."""
        return frozenset(t.name for t in self.index.tensors if t.kind is Kind.OPTIMIZER and t.state)

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """Parameters that the target's optimizer holds, each once, in order; () where that is not known."""
        if self.model is None:
            return ()
        tied = {n for group in self.model.tied for n in group[1:]}
        return tuple(
            t.name for t in self.model.tensors if not t.buffer and t.trainable and t.name not in tied
        )

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Names that the model's state_dict() asks for, with its own prefix; () where not known."""
        return tuple(self.prefix + t.name for t in self.model.tensors) if self.model is not None else ()

    @property
    def ordered(self) -> tuple[str, ...]:
        """The same in the order in which dcp.load asks: it sorts what lies at the top."""
        return self.asked if self.root else tuple(sorted(self.asked))

    @property
    def prefix(self) -> str:
        """What the target's own names begin with."""
        if self.load_api is LoadApi.STATE_DICT:
            return ""
        return self.target.wraps_names or ("module." if self.api is Api.DDP else "")

    @property
    def root(self) -> str:
        """What stands before the model's names where the load asks for them."""
        return self.index.model_root if self.target.root is None else self.target.root

    def key(self, name: str) -> str:
        """A name as the load asks for it."""
        return f"{self.root}.{name}" if self.root else name

    @property
    def optimizer_root(self) -> str:
        """What stands before the optimizer's keys."""
        return self.index.optimizer.root or "optim"

    @property
    def first(self) -> str:
        """The parameter whose state is asked for first."""
        return next(iter(self.trainable), "") or next(iter(self.saved), "<the first parameter>")

    def obstacle(self, cause: Cause, effect: Effect, found: str, expected: str, **more: object) -> Obstacle:
        """One that concerns this way."""
        ways = frozenset({(self.api, self.load_api)})
        return Obstacle(cause, effect, found, expected, ways=ways, **more)  # type: ignore[arg-type]


def some(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more."""
    held = list(names)
    more = f" and {len(held) - most} more" if len(held) > most else ""
    return ", ".join(held[:most]) + more


def size(shape: Sequence[int]) -> str:
    """As torch prints it."""
    return f"torch.Size([{', '.join(map(str, shape))}])"


def missing(key: str) -> str:
    """What dcp.load says of a key that it was asked for and has not."""
    return f"Missing key in checkpoint state_dict: {key}."
