"""What will load a checkpoint: ranks, API, model and optimizer, as far as they are known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Api(str, Enum):
    """How the model that loads is spread."""

    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"
    """Without a device mesh: state dicts hold ShardedTensors."""
    FSDP1_MESH = "fsdp1_mesh"
    """With a device mesh: state dicts hold DTensors."""
    DDP = "ddp"
    PLAIN = "plain"


class LoadApi(str, Enum):
    """Which calls load."""

    STATE_DICT = "state_dict"
    """get_state_dict and set_state_dict around dcp.load; for whole files set_model_state_dict."""
    RAW = "raw"
    """model.load_state_dict and optimizer.load_state_dict of what state_dict() gives."""
    PER_RANK = "per_rank"
    """torch.load of this rank's file, then load_state_dict."""


@dataclass(frozen=True, slots=True)
class TargetTensor:
    """A parameter or a persistent buffer of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch names it without the module: "bfloat16"."""
    buffer: bool = False
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class TargetModel:
    """What the model's state_dict() will ask for."""

    source: str
    """As it was named: "train.py:build"."""
    tensors: tuple[TargetTensor, ...] = ()
    """Of state_dict(), in the order of the modules; one that is tied to an earlier one is there too."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names that share one parameter, the one that named_parameters() gives first."""
    modules: tuple[tuple[str, str], ...] = ()
    """(name, class) of every module."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """None is "not said": what an answer does not depend on need not be known."""

    world_size: int | None = None
    world_source: str = ""
    """In words: "--world-size", "WORLD_SIZE of this job"."""
    api: Api | None = None
    load_api: LoadApi | None = None
    strategy: str | None = None
    """FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD."""
    wrap: tuple[str, ...] | None = None
    """Classes that are units of their own."""
    use_orig_params: bool | None = None
    model: TargetModel | None = None
    optimizer: str | None = None
    """adamw, adam, amsgrad, sgd, sgdm …"""
    param_groups: int | None = None
    model_only: bool = False
    """The optimizer's state is not asked for."""
    partial: bool = False
    """allow_partial_load or strict=False: what does not match is left out without an error."""
    flat_optimizer: bool | None = None
    """flatten_optimizer_state_dict; None for the form that was saved."""
    weights_only: bool | None = None
    """torch.load's argument; None for its default, which is true since torch 2.6."""
    scheduler: bool | None = None
    """A learning-rate scheduler is made before the optimizer's state is loaded."""
    primed: bool | None = None
    """The optimizer has stepped once before its raw state is loaded."""
    root: str | None = None
    """The key under which the model is asked for, "" for the top; None for where it was saved."""
    wraps_names: str = ""
    """A prefix that the run's own state_dict() carries: "module." of DDP, "_orig_mod." of torch.compile."""
