"""What a checkpoint on disk says of itself, read without running it and without reading its tensors.

One `CheckpointIndex` describes one checkpoint, however many folders and files its writer parted it into.
Bytes and elements are counts; paths are relative to the checkpoint, with undecodable bytes escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from fsdp_doctor.subjects.checkpoint_chunks import Chunk
from fsdp_doctor.subjects.checkpoint_manifest import Manifest
from fsdp_doctor.subjects.checkpoint_problem import Problem
from fsdp_doctor.subjects.checkpoint_state import Entry, Optimizer
from fsdp_doctor.subjects.checkpoint_world import World


class Format(str, Enum):
    """How the tensors are stored: this decides which loader reads them."""

    DCP = "dcp"
    """torch.distributed.checkpoint with one `.metadata` (also where the save did not finish)."""
    DCP_PER_RANK = "dcp_per_rank_metadata"
    """DCP saved with use_collectives=False: `__R.metadata` for every rank."""
    DCP_SAFETENSORS = "dcp_hf_safetensors"
    """DCP through HuggingFaceStorageWriter: sharded safetensors with DCP's offsets in their headers."""
    SAFETENSORS = "safetensors"
    """Whole tensors in one or several safetensors files."""
    TORCH_FULL = "torch_zip_full"
    """torch.save of whole tensors; one file, or several with an index."""
    LOCAL_PER_RANK = "fsdp1_local_per_rank"
    """A torch.save file per rank with FSDP1's LOCAL_STATE_DICT: the rank's own flat slices."""
    SHARDED_PER_RANK = "fsdp1_sharded_per_rank"
    """A torch.save file per rank that holds ShardedTensors (FSDP1 SHARDED_STATE_DICT without a mesh)."""
    DTENSOR_PER_RANK = "dtensor_per_rank"
    """A torch.save file per rank that holds DTensors (FSDP2, or FSDP1 with a device mesh)."""
    TORCH_PER_RANK = "torch_per_rank"
    """A torch.save file per rank of plain tensors, such as optimizer.state_dict() under FSDP1."""
    ZERO = "deepspeed_zero"
    ZERO_UNIVERSAL = "deepspeed_universal"
    TORCH_LEGACY = "torch_legacy"
    """torch.save of before 1.6, not a zip."""
    UNKNOWN = "unknown"


class Layout(str, Enum):
    """Who arranged the folder, as its names tell: decides what else belongs to a whole checkpoint."""

    PLAIN = "plain"
    ACCELERATE = "accelerate"
    TRAINER = "hf_trainer"
    LIGHTNING = "lightning"
    TORCHTITAN = "torchtitan"
    VERL = "verl"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    HF = "hf"
    """A model folder of transformers: weights beside config.json or an index."""


class Kind(str, Enum):
    """What a tensor belongs to."""

    MODEL = "model"
    """A parameter or a persistent buffer; files do not tell these apart."""
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Container(str, Enum):
    """The class in which a tensor was saved."""

    TENSOR = "Tensor"
    DTENSOR = "DTensor"
    SHARDED = "ShardedTensor"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor under one key, joined over all files and ranks that hold a part of it."""

    key: str
    """Flat, as DCP and the loaders spell it: "model.layers.0.weight", "optim.state.emb.weight.exp_avg"."""
    shape: tuple[int, ...]
    """Global. For slices of plain torch.save files, of which nothing tells the place: the first rank's."""
    dtype: str
    """As torch names it without the module: "float32", "bfloat16"."""
    kind: Kind = Kind.MODEL
    name: str = ""
    """The parameter's name in the module (`CheckpointIndex.model_root` taken off), also for optimizer state;
    the integer as text where optimizer state is keyed by it."""
    state: str | None = None
    """Of optimizer state: "exp_avg", "step" …"""
    part: str = ""
    """The folder or file group of the checkpoint that holds it: a `Part.path`."""
    container: Container = Container.TENSOR
    chunks: Sequence[Chunk] = ()
    """In the order of the metadata. Empty where the format does not tell."""
    splits: tuple[int, ...] = ()
    """Distinct offsets per dimension: (4, 1) is four rows of chunks. Empty for scalars and unknown."""
    placements: tuple[str, ...] = ()
    """Of a DTensor: "Shard(0)", "Replicate()", "_StridedShard(0)" per mesh dimension."""
    mesh: tuple[int, ...] = ()
    mesh_names: tuple[str, ...] = ()
    local_shapes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(rank, shape) per rank's file, for formats with a file per rank."""
    requires_grad: bool | None = None
    bytes: int = 0
    """Of the global tensor: elements x item size."""
    view_of: str | None = None
    """A key that shares this tensor's storage in the same file: tied weights."""
    contiguous: bool | None = None


class FileRole(str, Enum):
    """What a file is for."""

    DATA = "data"
    METADATA = "metadata"
    STATE = "state"
    """RNG, scheduler, dataloader, trainer state."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class File:
    """A file that the checkpoint has or that its metadata asks for."""

    path: str
    size: int | None = None
    """None where it is missing."""
    modified: float | None = None
    """Seconds since the epoch."""
    role: FileRole = FileRole.OTHER
    rank: int | None = None
    part: str = ""
    referenced: bool = False
    """Metadata points into it, or the format takes it by its name."""
    needed: int | None = None
    """Bytes that metadata needs: the end of the last item."""
    items: int = 0
    """Items that metadata places in it."""
    steps: tuple[int, ...] = ()
    """Optimizer steps or step counters read from it; files of one save agree."""
    link: str | None = None
    """The target's text where it is a symbolic link."""
    unreadable: str | None = None
    """Why it could not be opened or is no regular file."""


class Trust(str, Enum):
    """What a global named by a pickle means for whoever loads it."""

    TORCH = "torch"
    """torch.load lets it pass with weights_only=True, or DCP's own metadata needs it."""
    KNOWN = "known"
    """A class of torch or of a framework that weights_only=True refuses."""
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"
    """It runs code, or reaches files and processes, when it is called."""


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function that a pickle of the checkpoint names. None of them was imported."""

    name: str
    """"os.system": module and qualified name."""
    count: int = 1
    files: tuple[str, ...] = ()
    trust: Trust = Trust.UNKNOWN


@dataclass(frozen=True, slots=True)
class Part:
    """One store within the checkpoint: accelerate has `pytorch_model_fsdp_0` and `optimizer_0`."""

    path: str
    """Folder or file relative to the checkpoint; "" for the checkpoint itself."""
    format: Format
    holds: Kind = Kind.MODEL
    files: int = 0
    version: str | None = None
    """Of the metadata ("1.0.0"), of the zip or of the header."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A wrapper's prefix that names of the model carry."""

    text: str
    """"module.", "_orig_mod.", "model.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module." …"""
    keys: int
    """Model keys that carry it, at their beginning or within."""
    leading: bool = True


@dataclass(frozen=True, slots=True)
class DcpFacts:
    """What only DCP metadata tells."""

    version: str | None = None
    """None in metadata of before `version` was kept."""
    saved_to: str | None = None
    """The absolute path at save time (`storage_meta.checkpoint_id`)."""
    save_id: str | None = None
    has_planner_data: bool = True
    """Megatron stores none."""
    transformed: bool = False
    """Items went through a compressor or another extension: their sizes cannot be compared."""
    metadata_files: tuple[str, ...] = ()
    modified: float | None = None
    """Of `.metadata`."""
    complete: bool = True
    """The metadata file that a save writes last is there."""
    in_progress: bool = False
    """Files changed within the last minutes: an asynchronous save may still be running."""


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """Everything. Unknown is None or empty; what was wrong while reading is in `problems`."""

    path: str
    format: Format
    layout: Layout = Layout.PLAIN
    parts: tuple[Part, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    entries: tuple[Entry, ...] = ()
    files: tuple[File, ...] = ()
    globals: tuple[Global, ...] = ()
    problems: tuple[Problem, ...] = ()
    model_root: str = ""
    """What stands before the model's names: "model", or "" (torchtitan, full files)."""
    roots: tuple[str, ...] = ()
    """First components of all keys, at most 64."""
    prefixes: tuple[Prefix, ...] = ()
    optimizer: Optimizer = field(default_factory=Optimizer)
    world: World = field(default_factory=World)
    step: int | None = None
    step_source: str = ""
    epoch: float | None = None
    dcp: DcpFacts | None = None
    manifest: Manifest | None = None
    flat_parameters: int = 0
    """Keys that end in `_flat_param`: FSDP1's own slices."""
    bytes: int = 0
    """Of all tensors, each once."""
    read_seconds: float = 0.0
    scanned_at: float = 0.0
    """Clock of the reading machine, seconds since the epoch."""
    truncated: tuple[str, ...] = ()
    """What was left out because of a limit, in words."""
