"""What is rehearsed: a script, its arguments and the ranks, as a launch command says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from fsdp_doctor.subjects.launch import Launch

NODE = 8
"""GPUs of a host where the command does not say."""
DEVICES = ("auto", "gpu", "fake")
IN_FRONT = (
    "accelerate",
    "accelerate-launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
)
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
SCHEDULERS = ("srun", "mpirun")


class RehearsalError(ValueError):
    """The command cannot be rehearsed; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Rehearse:
    """One rehearsal."""

    world_size: int
    local_world_size: int
    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    steps: int = 2
    device: str = "auto"
    accelerate: tuple[str, ...] | None = None
    """The words after `accelerate launch`, which sets variables by them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    """srun or mpirun, where one of them starts the tasks."""
    launched: bool = False
    """Each of its tasks is a launcher, of which there is one on each node."""

    @property
    def name(self) -> str:
        """The script or module, as it was named."""
        return self.script or f"{self.module}"

    def to_json(self) -> dict[str, object]:
        """For the child."""
        return {
            "world_size": self.world_size,
            "local_world_size": self.local_world_size,
            "script": self.script,
            "module": self.module,
            "arguments": list(self.arguments),
            "steps": self.steps,
            "device": self.device,
            "accelerate": None if self.accelerate is None else list(self.accelerate),
            "scheduler": self.scheduler,
            "tasks": self.world_size // self.local_world_size if self.launched else self.world_size,
            "tasks_per_node": 1 if self.launched else self.local_world_size,
        }


def from_launch(launch: Launch, world_size: int | None, steps: int, device: str) -> Rehearse:
    """The rehearsal of a launch command. Raises `RehearsalError`.

    `world_size` overrides what the command says. `python train.py` says nothing of it.
    """
    if launch.script is None and launch.module is None:
        raise RehearsalError("the command names no Python script or module")
    if launch.script_error is not None:
        raise RehearsalError(launch.script_error)
    if launch.launcher == "deepspeed":
        raise RehearsalError("deepspeed's engine is not rehearsed: it shards by itself, not by FSDP")
    world = world_size or launch.world_size
    if world is None and launch.nproc_per_node is not None:
        world = launch.nproc_per_node * (launch.nodes[1] if launch.nodes else 1)
    if world is None:
        said = f" ({launch.nproc_spec} processes is not a number)" if launch.nproc_spec else ""
        raise RehearsalError(
            f"--world-size N is needed: the command does not say how many ranks there are{said}"
        )
    local = launch.nproc_per_node or NODE
    if local > world or world % local:
        local = max(n for n in range(1, NODE + 1) if world % n == 0)
    return Rehearse(
        world_size=world,
        local_world_size=min(local, world),
        script=launch.script,
        module=launch.module,
        arguments=launch.script_arguments,
        steps=steps,
        device=device,
        accelerate=_accelerate(launch),
        environment=dict(launch.environment),
        scheduler=launch.launcher if launch.launcher in SCHEDULERS else "",
        launched=_launched(launch),
    )


def _launched(launch: Launch) -> bool:
    """Whether a launcher stands between a scheduler and the script."""
    before = launch.command[: launch.command.index(launch.script)] if launch.script in launch.command else ()
    return any(PurePath(w).name in IN_FRONT or PurePath(w).name in TORCHRUN for w in before)


def _accelerate(launch: Launch) -> tuple[str, ...] | None:
    """What follows `accelerate launch` in the command, inside srun as well."""
    words = launch.command
    for i, word in enumerate(words):
        if PurePath(word).name in IN_FRONT or word in IN_FRONT:
            rest = words[i + 1 :]
            return rest[1:] if rest[:1] == ("launch",) else rest
        if word == launch.script:
            return None
    return None
