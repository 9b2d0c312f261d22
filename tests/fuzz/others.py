"""Readers of what a user, a peer or another machine gives: commands, settings, messages, recordings."""

from __future__ import annotations

import contextlib
import shlex
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from fixtures import machines
from fsdp_doctor import config
from fsdp_doctor.codec import FormatError
from fsdp_doctor.facts.collect import KINDS, collect
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.facts.launch.accelerate import ConfigError, read_config
from fsdp_doctor.facts.recorded import RecordingError, open_recording
from fsdp_doctor.ranks.recordings import pack_files, unpack_files
from fsdp_doctor.ranks.wire import Frames, WireError, pack
from tests.fuzz.target import Target

COMMANDS = [
    b"torchrun --nnodes=2:4 --nproc-per-node gpu --rdzv-endpoint=host:29400 train.py --config x.toml",
    b"srun -N 4 --ntasks-per-node=8 --gpus-per-node 8 python -u -m train.main --fsdp",
    b"accelerate launch --config_file acc.yaml --num_processes 8 train.py",
    b"mpirun -np 16 -x NCCL_DEBUG=INFO -H a:8,b:8 --bind-to none env OMP_NUM_THREADS=1 python train.py",
    b"bash -c 'exec torchrun --standalone --nproc-per-node=2 t.py'",
    b"deepspeed --hostfile hosts --num_gpus 4 train.py --deepspeed ds.json",
]
ACCELERATE = b"""compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: SHARDED_STATE_DICT
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
SETTINGS = b"""[tool.fsdp-doctor]
select = ["GPU", "NET"]
deadline = 30.5
[[tool.fsdp-doctor.suppress]]
code = "GPU004"
reason = "known"
until = 2027-01-31
"""


def _command(data: bytes, place: Path) -> object:
    try:
        words = shlex.split(data.decode("utf-8", "replace"))
        return parse_launch(words, place, {"SLURM_NTASKS": "8"})
    except (LaunchError, ValueError) as error:
        return str(error)


def _accelerate(data: bytes, place: Path) -> object:
    (place / "acc.yaml").write_bytes(data)
    with contextlib.suppress(LaunchError):
        parse_launch(["accelerate", "launch", "--config_file", "acc.yaml", "t.py"], place)
    try:
        return read_config(place / "acc.yaml")
    except ConfigError as error:
        return str(error)


def _settings(data: bytes, place: Path) -> object:
    (place / "pyproject.toml").write_bytes(data)
    try:
        return config.load(None, place)
    except config.ConfigError as error:
        return str(error)


def _frames(data: bytes, place: Path) -> object:
    frames = Frames(1 << 20)
    try:
        return [m for at in range(0, len(data), 61) for m in frames.feed(data[at : at + 61])]
    except WireError as error:
        return str(error)


def _sent() -> list[bytes]:
    small, large = pack({"type": "hello", "rank": 3}), pack({"type": "digest", "x": ["word"] * 2000})
    return [small + large + small]


def _packed(data: bytes, place: Path) -> object:
    try:
        return unpack_files(data.decode("ascii", "replace"))
    except FormatError as error:
        return str(error)


def _recording() -> list[bytes]:
    box = BytesIO()
    with zipfile.ZipFile(box, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in machines.geforce().contents().items():
            archive.writestr(name, content)
    return [box.getvalue()]


def _opened(data: bytes, place: Path) -> object:
    (place / "machine.zip").write_bytes(data)
    try:
        return collect(open_recording(place / "machine.zip"), KINDS)
    except RecordingError as error:
        return str(error)


TARGETS: Mapping[str, Target] = {
    "launch-command": Target(lambda: COMMANDS, _command),
    "accelerate-config": Target(lambda: [ACCELERATE], _accelerate),
    "settings": Target(lambda: [SETTINGS], _settings),
    "wire": Target(_sent, _frames),
    "packed-recording": Target(lambda: [pack_files(machines.geforce().contents()).encode()], _packed),
    "recording": Target(_recording, _opened),
}
