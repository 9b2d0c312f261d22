"""A group whose commands are imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """Commands by name; help needs none of their modules."""

    modules: ClassVar[Mapping[str, tuple[str, str]]]
    """Command -> module and one line of help. The module's `command` is loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are explained."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in self.modules:
            return None
        command = import_module(self.modules[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line per command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.modules.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the command named that is meant or nearest where there is none of that name."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.modules:
            from fsdp_doctor.config import nearest

            meant = self.otherwise(name)
            said = f"; that is `{meant}`" if meant else nearest(name, tuple(self.modules))
            ctx.fail(f"no command {name!r}{said}")
        return super().resolve_command(ctx, args)

    def otherwise(self, name: str) -> str:
        """The command line that a word stands for which is no command; "" where none is known."""
        return ""
