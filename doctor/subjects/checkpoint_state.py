"""What of a checkpoint is no weight: plain values, and how the optimizer's state is keyed and grouped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Plain = str | int | float | bool | None
"""A value that a pickle holds and that is no object."""


class Role(str, Enum):
    """What a plain value or object is for."""

    STEP = "step"
    EPOCH = "epoch"
    SCHEDULER = "scheduler"
    RNG = "rng"
    DATALOADER = "dataloader"
    OPTIMIZER = "optimizer"
    """A scalar of the optimizer's state, such as a step that is no tensor."""
    PARAM_GROUP = "param_group"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value that is no tensor."""

    key: str
    role: Role = Role.OTHER
    value: Plain = None
    """For numbers, texts and booleans; None too where `type` says more than a plain value."""
    type: str = ""
    """"int", "list", or the class that the pickle names."""
    rank: int | None = None
    """Where the key or the file carries one: `dataloader.dp_rank_3`, `random_states_3.pkl`."""
    part: str = ""
    file: int | None = None
    start: int | None = None
    length: int | None = None
    value_read: bool = False
    """False where the value lies in a data file that was not opened for it."""
    differs: bool = False
    """The files of several ranks hold different values under this key."""


class Keying(str, Enum):
    """How optimizer state names its parameters."""

    FQN = "fqn"
    PARAM_ID = "param_id"
    NONE = "none"
    """There is no optimizer state."""


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """One group of the optimizer."""

    index: int | None
    """None where hyperparameters are kept per parameter (`flatten_optimizer_state_dict`)."""
    options: Mapping[str, Plain] = field(default_factory=dict)
    """lr, betas as "betas.0" and "betas.1", weight_decay, initial_lr …"""
    params: tuple[str, ...] | None = None
    """Names or integer ids as text, in the group's order; None where not known."""


class GroupForm(str, Enum):
    """How the file keeps parameter groups."""

    NESTED = "nested"
    """`optim.param_groups.0.lr`"""
    FLATTENED = "flattened"
    """`optim.param_groups.emb.weight.lr`: flatten_optimizer_state_dict=True."""
    BLOB = "blob"
    """One object under `optim.param_groups`: saved by torch 2.3 or earlier."""
    IN_PICKLE = "in_pickle"
    """Inside one torch.save file."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer's state."""

    keying: Keying = Keying.NONE
    root: str = ""
    """The key's beginning before `state` and `param_groups`: "optim", "optimizer", or ""."""
    kind: str | None = None
    """What its state names tell: "adam" (AdamW too), "adam_amsgrad", "sgd_momentum", "adafactor" …"""
    states: tuple[str, ...] = ()
    """Names of per-parameter state, sorted: ("exp_avg", "exp_avg_sq", "step")."""
    parameters: int = 0
    """Parameters that have state."""
    groups: tuple[ParamGroup, ...] = ()
    group_form: GroupForm | None = None
    local_slices: bool = False
    """State tensors fit no parameter: a rank's flat slices stored as if they were whole."""
