"""Which ways of loading are judged: the one asked for, or those that the format is made for."""

from __future__ import annotations

from fsdp_doctor.ckpt.compat.question import DCP, PER_RANK
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Container, Format, Kind
from fsdp_doctor.subjects.checkpoint_state import Keying
from fsdp_doctor.subjects.load_target import Api, LoadApi, LoadTarget
from fsdp_doctor.subjects.loading import Way

FSDP = (Api.FSDP2, Api.FSDP1_MESH, Api.FSDP1)


def ways(index: CheckpointIndex, target: LoadTarget) -> tuple[Way, ...]:
    """(API, load API) pairs, the most usual first."""
    apis: tuple[Api, ...] = FSDP if target.api is None else (target.api,)
    if target.load_api is not None:
        return tuple((a, target.load_api) for a in apis)
    load = natural(index)
    if target.api is None:
        apis = natural_apis(index)
    return tuple((a, load) for a in apis)


def natural(index: CheckpointIndex) -> LoadApi:
    """The calls that whoever saved in this format loads with."""
    if index.format in PER_RANK:
        return LoadApi.PER_RANK
    if index.format in DCP and (index.flat_parameters or index.optimizer.keying is Keying.PARAM_ID):
        return LoadApi.RAW
    return LoadApi.STATE_DICT


def natural_apis(index: CheckpointIndex) -> tuple[Api, ...]:
    """Those of FSDP that can have made it: files of flat parameters are FSDP1's own."""
    if index.flat_parameters:
        return (Api.FSDP1,)
    return tuple(a for a in FSDP if a in makers(index)) if index.format in PER_RANK else FSDP


def makers(index: CheckpointIndex) -> tuple[Api, ...]:
    """APIs whose load_state_dict takes the tensors of files per rank."""
    if index.format in (Format.LOCAL_PER_RANK, Format.SHARDED_PER_RANK):
        return (Api.FSDP1,)
    if index.format is not Format.DTENSOR_PER_RANK:
        return tuple(Api)
    state = [t for t in index.tensors if t.kind is Kind.OPTIMIZER and t.state != "step" and t.shape]
    if any(t.container is Container.DTENSOR for t in state):
        return (Api.FSDP2,)  # FSDP1's own optimizer state is flat slices, whatever its mesh
    return (Api.FSDP1_MESH,) if state else (Api.FSDP2, Api.FSDP1_MESH)
