"""`fsdp-doctor ckpt`: the commands about checkpoints; each module is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping

import click

from fsdp_doctor.cli.lazy import LazyGroup
from fsdp_doctor.cli.otherwise import CHECKPOINTS, PROGRAM, meant

COMMANDS: Mapping[str, tuple[str, str]] = {
    "inspect": ("fsdp_doctor.cli.ckpt.inspect", "What a checkpoint holds, and whether it is whole."),
    "check": ("fsdp_doctor.cli.ckpt.check", "Whether it loads here, and if not, why and what then."),
    "diff": ("fsdp_doctor.cli.ckpt.diff", "What differs between two checkpoints."),
    "convert": ("fsdp_doctor.cli.ckpt.convert", "The same tensors in another format."),
    "estimate": (
        "fsdp_doctor.cli.ckpt.estimate",
        "Memory and disk of each way to save and to load.",
    ),
    "latest": ("fsdp_doctor.cli.ckpt.latest", "The newest whole checkpoint of a run."),
}
"""Command -> module and one line of help. The module's `command` is loaded when it is called."""


class CheckpointGroup(LazyGroup):
    """The commands about checkpoints."""

    modules = COMMANDS

    def otherwise(self, name: str) -> str:
        """Of words that users try."""
        return meant(name, CHECKPOINTS, f"{PROGRAM} ckpt")


@click.group(
    "ckpt",
    cls=CheckpointGroup,
    short_help="Read checkpoints: what is in them, and do they load here.",
)
def command() -> None:
    """Read checkpoints: nothing in them is run, no tensor is loaded, torch is not needed.

    DCP, FSDP1 and FSDP2 files per rank, full torch.save files, safetensors, and what accelerate, Trainer,
    Lightning, torchtitan, verl, DeepSpeed and Megatron make of them. Paths may be URLs of fsspec
    (s3://…, gs://…) with the extra `remote`.
    """
