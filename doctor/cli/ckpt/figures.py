"""An index as the values of `data` in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fsdp_doctor.codec import to_json
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, File, Kind, Tensor, Trust
from fsdp_doctor.subjects.checkpoint_state import Entry


def figures(index: CheckpointIndex, shown: Iterable[Tensor]) -> dict[str, object]:
    """Everything but chunks; `shown` are the tensors that the filters leave."""
    kinds = Counter(t.kind.value for t in index.tensors)
    return {
        "format": index.format.value,
        "layout": index.layout.value,
        "world_size": index.world.size,
        "world_size_source": index.world.source.value,
        "world_size_detail": index.world.detail,
        "world_size_certain": index.world.certain,
        "shard_degree": index.world.shard_degree,
        "replicas": index.world.replicas,
        "mesh": list(index.world.mesh),
        "mesh_names": list(index.world.mesh_names),
        "tensors": len(index.tensors),
        "bytes": index.bytes,
        "dtypes": dict(Counter(t.dtype for t in index.tensors).most_common()),
        "model_tensors": kinds[Kind.MODEL.value],
        "optimizer_tensors": kinds[Kind.OPTIMIZER.value],
        "elements": sum(_elements(t) for t in index.tensors if t.kind is Kind.MODEL and t.view_of is None),
        "model_root": index.model_root,
        "prefixes": [to_json(p) for p in index.prefixes],
        "optimizer": index.optimizer.keying.value,
        "optimizer_state": _optimizer(index),
        "step": index.step,
        "step_source": index.step_source,
        "epoch": index.epoch,
        "entries": [_entry(e) for e in index.entries[:ENTRIES]],
        "entries_total": len(index.entries),
        "files": len(index.files),
        "file_bytes": sum(f.size or 0 for f in index.files),
        "file_list": [_file(f) for f in index.files],
        "globals": [g.name for g in index.globals],
        "dangerous_globals": [g.name for g in index.globals if g.trust is Trust.DANGEROUS],
        "weights_only_refuses": [g.name for g in index.globals if g.trust is not Trust.TORCH],
        "parts": [to_json(p) for p in index.parts],
        "metadata": None if index.dcp is None else to_json(index.dcp),
        "manifest": None if index.manifest is None else to_json(index.manifest),
        "problems": [to_json(p) for p in index.problems],
        "left_out": list(index.truncated),
        "tensor_list": [_tensor(t) for t in shown],
        "read_seconds": round(index.read_seconds, 3),
    }


ENTRIES = 2000


def _elements(tensor: Tensor) -> int:
    count = 1
    for n in tensor.shape:
        count *= n
    return count


def _optimizer(index: CheckpointIndex) -> dict[str, object]:
    own = index.optimizer
    return {
        "kind": own.kind,
        "root": own.root,
        "states": list(own.states),
        "parameters": own.parameters,
        "groups": [
            {"index": g.index, "options": dict(g.options), "params": _count(g.params)} for g in own.groups
        ],
        "group_form": None if own.group_form is None else own.group_form.value,
    }


def _count(params: tuple[str, ...] | None) -> int | None:
    return None if params is None else len(params)


def _entry(entry: Entry) -> dict[str, object]:
    told: dict[str, object] = {"key": entry.key, "role": entry.role.value, "type": entry.type}
    if entry.value is not None:
        told["value"] = entry.value
    if entry.rank is not None:
        told["rank"] = entry.rank
    if entry.differs:
        told["differs_by_rank"] = True
    return told


def _file(file: File) -> dict[str, object]:
    told: dict[str, object] = {"path": file.path, "size": file.size, "role": file.role.value}
    if file.rank is not None:
        told["rank"] = file.rank
    if not file.referenced:
        told["referenced"] = False
    if file.needed is not None:
        told["needed"] = file.needed
    if file.steps:
        told["steps"] = list(file.steps)
    return told


def _tensor(tensor: Tensor) -> dict[str, object]:
    told: dict[str, object] = {
        "key": tensor.key,
        "kind": tensor.kind.value,
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "bytes": tensor.bytes,
        "chunks": len(tensor.chunks),
    }
    if tensor.state is not None:
        told["state"] = tensor.state
    if max(tensor.splits, default=1) > 1:
        told["splits"] = list(tensor.splits)
    if tensor.placements:
        told["placements"] = list(tensor.placements)
    if tensor.view_of is not None:
        told["shares_storage_with"] = tensor.view_of
    return told
