"""Memory and disk of every way to save and to load, from the sizes of a model and its job.

Nothing is measured here; docs/checkpoint-memory.md compares it with real ranks and with a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Kind
from fsdp_doctor.subjects.checkpoint_cost import Cost, Way
from fsdp_doctor.subjects.load_target import TargetModel
from fsdp_doctor.tables.optimizers import STATES
from fsdp_doctor.tables.torch_dtypes import item_bytes

SCALARS = frozenset({"step", "mu_product"})
"""State that is one number per parameter."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model and its optimizer, in bytes."""

    parameters: int
    optimizer: int
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """How the model is spread."""

    world_size: int
    ranks_per_node: int
    api: str = "fsdp2"
    sharded: bool = True
    """False where every rank holds everything: DDP, NO_SHARD, one rank."""

    @property
    def parts(self) -> int:
        """Ranks over which a tensor is cut."""
        return self.world_size if self.sharded else 1


def of_count(count: int, dtype: str, optimizer: str) -> Sizes:
    """A model of so many parameters, all of one dtype."""
    size = count * (item_bytes(dtype) or 4)
    return Sizes(size, size * _states(optimizer))


def of_model(model: TargetModel, optimizer: str) -> Sizes:
    """A model whose tensors are known; tied ones count once."""
    again = {name for group in model.tied for name in group[1:]}
    sizes = {}
    trainable = 0
    for tensor in model.tensors:
        if tensor.name in again:
            continue
        size = item_bytes(tensor.dtype) or 4
        for length in tensor.shape:
            size *= length
        sizes[tensor.name] = size
        trainable += size if tensor.trainable and not tensor.buffer else 0
    return Sizes(sum(sizes.values()), trainable * _states(optimizer), max(sizes.values(), default=0))


def of_checkpoint(index: CheckpointIndex) -> Sizes:
    """What a checkpoint holds."""
    model = [t.bytes for t in index.tensors if t.kind is Kind.MODEL and t.view_of is None]
    optimizer = [t.bytes for t in index.tensors if t.kind is Kind.OPTIMIZER]
    return Sizes(sum(model), sum(optimizer), max((*model, *optimizer), default=0))


def _states(optimizer: str) -> int:
    return sum(state not in SCALARS for state in STATES[optimizer])


def resident(sizes: Sizes, job: Job) -> int:
    """What training holds on each GPU: its part of parameters, gradients and optimizer state."""
    return -(-(2 * sizes.parameters + sizes.optimizer) // job.parts)


def costs(sizes: Sizes, job: Job) -> tuple[Cost, ...]:
    """Every way, those that save first."""
    return (*_saves(sizes, job), *_loads(sizes, job))


def _saves(sizes: Sizes, job: Job) -> tuple[Cost, ...]:
    everything = sizes.parameters + sizes.optimizer
    ranks = job.ranks_per_node
    shard, tensor = -(-everything // job.parts), sizes.largest or 0
    part = -(-tensor // job.parts)
    fsdp1 = job.api == "fsdp1"
    gathered, one, clones = _gathered(sizes, job)
    whole = "FSDP.state_dict_type(FULL_STATE_DICT)" if fsdp1 else "StateDictOptions(full_state_dict=True)"
    offload = "FullStateDictConfig(offload_to_cpu=True, rank0_only=" if fsdp1 else ""
    rank0 = f"{offload}True)" if fsdp1 else "StateDictOptions(full_state_dict=True, cpu_offload=True)"
    made = [
        Cost(
            Way.SAVE_DCP, True, "get_state_dict and dcp.save", clones, part, part, part * ranks, everything,
            note="one tensor's shard at a time", advised=True,
        ),
        Cost(
            Way.SAVE_ASYNC, True, "get_state_dict and dcp.async_save", clones, shard, shard, shard * ranks,
            everything, note="a copy of the shards while it writes; twice that where saves overlap",
            advised=True,
        ),
        Cost(
            Way.SAVE_FULL, True, whole, gathered, tensor, 0, tensor, everything,
            note="everything on every GPU",
        ),
        Cost(
            Way.SAVE_RANK0, True, rank0, one, everything, 0, everything, everything,
            note="everything in rank 0's host memory; called by all ranks",
        ),
    ]  # fmt: skip
    if fsdp1:
        made.append(
            Cost(
                Way.SAVE_FULL_OFFLOAD, True, f"{offload}False)", one, everything, everything,
                everything * ranks, everything, note="everything in host memory of every rank",
            )
        )  # fmt: skip
        made.append(
            Cost(
                Way.SAVE_PLAIN, True, "model.state_dict()", sizes.parameters + tensor, tensor, 0, tensor,
                sizes.parameters, note="FSDP1's default: all parameters on every GPU; no optimizer",
            )
        )  # fmt: skip
    else:
        made.append(
            Cost(
                Way.SAVE_PLAIN, True, "model.state_dict()", 0, part, part, part * ranks, sizes.parameters,
                note="DTensors or the tensors themselves: nothing is gathered; no optimizer",
            )
        )  # fmt: skip
    each = everything * (1 if job.sharded else job.world_size)
    made.append(
        Cost(
            Way.SAVE_PER_RANK, True, "torch.save of state_dict() on each rank", 0, part, part, part * ranks,
            each, note="loads on as many ranks only",
        )
    )  # fmt: skip
    return tuple(made)


def _gathered(sizes: Sizes, job: Job) -> tuple[int, int, int]:
    """On each GPU: for a full state dict, for one of which nothing stays there, and for the shards' own dict.

    FSDP2 hands out its shards and gathers one tensor after the other. FSDP1 clones what it hands out, gathers
    whole units (the largest tensor is the least that one can be), and of an optimizer its own piece beside.
    """
    if not job.sharded:
        return 0, 0, 0
    everything, tensor = sizes.parameters + sizes.optimizer, sizes.largest or 0
    if job.api != "fsdp1":
        return everything, tensor, 0
    piece = -(-tensor // job.parts) if sizes.optimizer else 0
    return everything + tensor + piece, tensor + 2 * piece, -(-everything // job.parts)


def _loads(sizes: Sizes, job: Job) -> tuple[Cost, ...]:
    everything = sizes.parameters + sizes.optimizer
    ranks, tensor = job.ranks_per_node, sizes.largest or 0
    shard = -(-everything // job.parts)
    # FSDP1: its clones, the model's once more, and a unit that is gathered beside its copy.
    again = -(-(2 * sizes.parameters + sizes.optimizer) // job.parts) + 2 * tensor
    dcp = again if job.api == "fsdp1" and job.sharded else 0
    # Without the broadcast each tensor is scattered into a new shard; the old ones are there until all are.
    renewed = tensor + (-(-max(sizes.parameters, sizes.optimizer) // job.parts) if job.sharded else 0)
    return (
        Cost(
            Way.LOAD_DCP, False, "get_state_dict, dcp.load and set_state_dict", dcp, tensor, tensor,
            tensor * ranks, note="one saved part at a time: a whole tensor where it was saved whole",
            advised=True,
        ),
        Cost(
            Way.LOAD_BROADCAST, False, "torch.load on rank 0, broadcast_from_rank0=True", tensor, everything,
            0, everything, note="the optimizer in a call of its own; mmap=True leaves the file in page cache",
            advised=True,
        ),
        Cost(
            Way.LOAD_MMAP, False, "torch.load(mmap=True) on each rank", renewed, 0, 0, 0,
            page_cache_per_node=everything, note="the page cache is shared by the ranks of a node",
        ),
        Cost(
            Way.LOAD_EACH, False, "torch.load on each rank", renewed, everything, everything,
            everything * ranks, note="ranks of a node times the whole file",
        ),
        Cost(
            Way.LOAD_PER_RANK, False, "torch.load of a file per rank", 0, shard, shard, shard * ranks,
            note="onto the CPU; with map_location='cuda' that much of GPU memory instead",
        ),
    )  # fmt: skip
