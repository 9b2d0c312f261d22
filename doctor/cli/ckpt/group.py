"""`fsdp-doctor ckpt`: the commands about checkpoints; each module is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

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


class CheckpointGroup(click.Group):
    """Commands by name; help needs none of their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are explained."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line per command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command named where there is none of that name."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            from fsdp_doctor.config import nearest

            ctx.fail(f"no command {name!r}{nearest(name, tuple(COMMANDS))}")
        return super().resolve_command(ctx, args)


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
