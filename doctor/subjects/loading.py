"""Whether a checkpoint loads into a target, and everything that stands in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from fsdp_doctor.subjects.checkpoint import Format, Layout
from fsdp_doctor.subjects.load_target import Api, LoadApi, LoadTarget

Way = tuple[Api, LoadApi]


class Answer(str, Enum):
    """Does it load? From the worst to the best."""

    NO = "no"
    UNKNOWN = "unknown"
    DEPENDS_ON_API = "depends_on_api"
    YES_WARN = "yes_warn"
    """It loads; something is lost or changed, and is named."""
    YES_SAME_SETUP = "yes_same_setup"
    """Only with the same number of ranks, wrapping and options."""
    YES_CONVERT_API = "yes_convert_api"
    """Only through the call that is named."""
    YES_RESHARD = "yes_reshard"
    YES = "yes"


class Effect(str, Enum):
    """What an obstacle does to the one who loads."""

    FAILS = "fails"
    """torch raises `message`."""
    HANGS = "hangs"
    WRONG = "wrong"
    """It loads without an error, and values are wrong."""
    UNKNOWN = "unknown"
    """It cannot be told from what is known."""
    LOST = "lost"
    """It loads without an error; something is left out or changed."""
    SAME_SETUP = "same_setup"
    CONVERT_API = "convert_api"
    RESHARDS = "reshards"
    NOTE = "note"


class Cause(str, Enum):
    """One per mechanism; each belongs to one check."""

    # what is on disk
    UNREADABLE = "unreadable"
    UNSAFE = "unsafe"
    UNFINISHED = "unfinished"
    METADATA = "metadata"
    FILES_LOST = "files_lost"
    FOREIGN = "foreign"
    COVERAGE = "coverage"
    STEPS_MIXED = "steps_mixed"
    CHECKSUM = "checksum"
    STALE = "stale"
    LOCAL_SLICES = "local_slices"
    # how it is parted
    PER_RANK = "per_rank"
    FLAT = "flat"
    NO_COLLECTIVES = "no_collectives"
    EMPTY_RANKS = "empty_ranks"
    # who reads it
    WRONG_LOADER = "wrong_loader"
    WHOLE_FILE = "whole_file"
    WEIGHTS_ONLY = "weights_only"
    FRAMEWORK = "framework"
    # names and shapes
    PREFIX = "prefix"
    MISSING_KEYS = "missing_keys"
    EXTRA_KEYS = "extra_keys"
    SIZES = "sizes"
    DTYPE = "dtype"
    TIED = "tied"
    # the optimizer
    NO_OPTIMIZER = "no_optimizer"
    INTEGER_KEYS = "integer_keys"
    OPTIMIZER_FORM = "optimizer_form"
    GROUPS = "groups"
    OPTIMIZER_KIND = "optimizer_kind"
    OPTIMIZER_SLICES = "optimizer_slices"
    SAVED_LR = "saved_lr"
    # the rest of the run
    SCHEDULER = "scheduler"
    RANK_OBJECTS = "rank_objects"
    DATALOADER = "dataloader"
    RNG = "rng"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing in the way of some ways of loading, or worth knowing for them."""

    cause: Cause
    effect: Effect
    found: str
    expected: str
    message: str = ""
    """What torch prints, with the checkpoint's own names in it."""
    fix: str = ""
    command: str | None = None
    tensor: str | None = None
    path: str | None = None
    """Relative to the checkpoint."""
    ways: frozenset[Way] = frozenset()
    """The judged ways that it concerns."""
    examples: tuple[str, ...] = ()
    """Names that are hit, at most 8."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The judgement of one checkpoint for one target."""

    path: str
    format: Format
    layout: Layout
    target: LoadTarget
    answer: Answer
    by_way: Mapping[Way, Answer] = field(default_factory=dict)
    """Each way that was judged: the one asked for, or the natural ones of the format."""
    obstacles: tuple[Obstacle, ...] = ()
    saved_on: int | None = None
    """Ranks that saved it."""
    natural: bool = True
    """No way was asked for."""
    unread: str = ""
    """Why nothing but the damage could be judged; "" where the tensors are known."""
