"""Readers of checkpoints: one changed file in a folder that torch wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from fixtures.checkpoints import saved
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.checkpoint_problem import ProblemKind
from tests.fuzz.target import Read, Target
from tests.unit.ckpt.making import Tensor, safetensors, small, torch_file


def _read(path: Path) -> object:
    index = read_here(str(path))
    faults = [p for p in index.problems if p.kind is ProblemKind.READER_FAILED]
    assert not faults, faults
    return index


def _metadata() -> list[bytes]:
    return [(saved.checkpoint("fsdp2_dcp.2") / ".metadata").read_bytes()]


def _checkpoint(data: bytes, place: Path) -> object:
    small().write(place)
    (place / ".metadata").write_bytes(data)
    return _read(place)


def _alone(name: str) -> Read:
    def look(data: bytes, place: Path) -> object:
        (place / name).write_bytes(data)
        return _read(place)

    return look


def _member(checkpoint: str, name: str, made: bytes = b"") -> Target:
    """A file of a saved checkpoint, or one that is `made` and laid beside the others."""

    def seeds() -> list[bytes]:
        return [made or (saved.checkpoint(checkpoint) / name).read_bytes()]

    def look(data: bytes, place: Path) -> object:
        folder = place / "ckpt"
        shutil.copytree(saved.checkpoint(checkpoint), folder)
        (folder / name).write_bytes(data)
        return _read(folder)

    return Target(seeds, look)


def _torch_files() -> list[bytes]:
    return [torch_file({"w": Tensor("0", (4, 4)), "v": Tensor("1", (2,))}, {"step": 3})]


INDEX = json.dumps(
    {
        "metadata": {"total_size": 2220},
        "weight_map": {"net.0.weight": "model.safetensors", "b": "m-2.safetensors"},
    }
).encode()
TRAINER = json.dumps(
    {"global_step": 12, "epoch": 0.5, "max_steps": 100, "log_history": [{"loss": 2.1}]}
).encode()
MANIFEST = json.dumps(
    {
        "schema": "fsdp-doctor-manifest/1",
        "files": {"__0_0.distcp": {"size": 50807, "tail": "00"}},
        "world_size": 2,
    }
).encode()

TARGETS: Mapping[str, Target] = {
    "dcp-metadata": Target(_metadata, _checkpoint),
    "torch-file": Target(_torch_files, _alone("m.pt")),
    "safetensors": Target(lambda: [safetensors({"a": (3, 4), "b": (5,)})], _alone("m.safetensors")),
    "legacy-torch-file": _member("full_legacy.2", "model.pt"),
    "rank-file": _member("fsdp1_sharded_files.2", "model_rank1.pt"),
    "deepspeed": _member("deepspeed.2", "global_step1/mp_rank_00_model_states.pt"),
    "deepspeed-latest": _member("deepspeed.2", "latest"),
    "safetensors-index": _member("safetensors.2", "model.safetensors.index.json", INDEX),
    "safetensors-shard": _member("fsdp2_hf.2", "shard-00002-model-00001-of-00001.safetensors"),
    "trainer-state": _member("accelerate_full.2", "trainer_state.json", TRAINER),
    "megatron-metadata": _member("megatron.2", "metadata.json"),
    "manifest": _member("fsdp2_model.2", "fsdp-doctor-manifest.json", MANIFEST),
}
