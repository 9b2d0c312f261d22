"""The ranks that saved against those that load."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP020", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def per_rank_files(facts: Facts, options: Options) -> Iterator[Finding]:
    """Files per rank load on as many ranks only.

    What: The number of ranks that saved, where each wrote its own file, against the number that loads.
    Why: This is the topology error: ShardedTensors and DTensors of torch.save hold their process group or
        mesh and cannot be read on another. DCP folders reshard.
    Fix: Convert once (`fsdp-doctor ckpt convert`), and save with dcp.save from now on.
    Sources: Torch/distributed/_shard/sharded_tensor/api.py (__setstate__); torch/distributed/tensor/_ops.
    """
    yield from speak(facts, Cause.PER_RANK, needs="world_size")


@check("CKP021", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def flat_parameters(facts: Facts, options: Options) -> Iterator[Finding]:
    """FSDP1 flat parameters need the setup that saved them.

    What: LOCAL_STATE_DICT keys (`_flat_param`), units, ranks and use_orig_params.
    Why: Flat parameters are the concatenation of a unit's tensors: another wrapping, another API or
        another number of ranks cannot take them apart.
    Fix: Load them once in the setup that saved them and save with get_state_dict and dcp.save.
    Sources: Torch/distributed/fsdp/_flat_param.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.FLAT)


@check("CKP022", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def no_collectives(facts: Facts, options: Options) -> Iterator[Finding]:
    """Saved with use_collectives=False: the metadata is parted by rank.

    What: `__R.metadata` files in place of .metadata.
    Why: Each rank reads its own metadata: on fewer ranks most tensors stay as they were initialised,
        without an error.
    Fix: Merge the metadata (`fsdp-doctor ckpt convert … --to merge-metadata`), which moves no tensor.
    Sources: Torch/distributed/checkpoint/state_dict_loader.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.NO_COLLECTIVES, needs="world_size")


@check("CKP023", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def empty_ranks(facts: Facts, options: Options) -> Iterator[Finding]:
    """FSDP1 ranks that hold no row of a tensor cannot load.

    What: Rows of each parameter against the ranks: dim 0 is cut into chunks of ceil(rows / ranks).
    Why: Without a device mesh the ranks beyond the last chunk have no key for the tensor, take the
        checkpoint for one of before torch 2.4 and fail with `Missing key: optim.param_groups.`, also with
        as many ranks as at save.
    Fix: Give FSDP1 a device_mesh, or pass DefaultLoadPlanner(flatten_sharded_tensors=False).
    Sources: Torch/distributed/checkpoint/default_planner.py (create_local_plan); measured with torch
        2.13.
    """
    yield from speak(facts, Cause.EMPTY_RANKS, needs="world_size")
