"""Options that every command takes, after its name, and what they come to with the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TypeVar

import click

from fsdp_doctor.cli.output import (
    check_target,
    complain,
    emit,
    wants_ascii,
    wants_colour,
    width,
    write_file,
)
from fsdp_doctor.config import MAX_SECONDS, Config, ConfigError, load
from fsdp_doctor.report.style import Style

Command = TypeVar("Command", bound=Callable[..., int])


SECONDS = click.FloatRange(min=0, min_open=True, max=MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Settings:
    """The common options, with the configuration's values where the command line says nothing."""

    format: str
    output: Path | None
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    deadline: float | None
    strict: bool
    verbose: bool
    no_color: bool
    config: Config

    def style(self) -> Style:
        """How text may look at its destination. A file gets plain UTF-8 of a fixed width."""
        if self.output is not None:
            return Style(verbose=self.verbose)
        return Style(
            width=width(),
            colour=wants_colour(sys.stdout, os.environ, self.no_color),
            ascii=wants_ascii(sys.stdout, os.environ),
            verbose=self.verbose,
        )

    def deliver(self, text: str, summary: str = "") -> None:
        """Write to the file that was asked for and name it on standard error, else to standard output."""
        if self.output is None:
            emit(text)
            return
        write_file(self.output, text)
        complain(f"{summary}{': ' if summary else ''}written to {self.output}")


def common(
    *formats: str, judging: bool = False, deadline: bool = False
) -> Callable[[Command], Callable[..., int]]:
    """Add the common options to a command; its function gets them as `Settings` in front of its own.

    `formats` are those that the command has, the first one is the default. A command that takes time has
    a `deadline`; one that is `judging` has it too, and the options that bear on results.
    """

    def decorate(command: Command) -> Callable[..., int]:
        @wraps(command)
        def called(
            output_format: str | None,
            output: Path | None,
            select: tuple[str, ...],
            ignore: tuple[str, ...],
            verbose: bool,
            no_color: bool,
            config: Path | None,
            deadline: float | None = None,
            strict: bool | None = None,
            **own: object,
        ) -> int:
            configured = _configured(config)
            chosen = output_format or configured.format or formats[0]
            if output is not None:
                check_target(output)
            settings = Settings(
                format=chosen if chosen in formats else formats[0],
                output=output,
                select=select or configured.select,
                ignore=ignore or configured.ignore,
                deadline=deadline if deadline is not None else configured.deadline,
                strict=strict if strict is not None else bool(configured.strict),
                verbose=verbose,
                no_color=no_color,
                config=configured,
            )
            return command(settings, **own)

        decorated: Callable[..., int] = called
        for option in reversed(_options(formats, judging, deadline or judging)):
            decorated = option(decorated)
        return decorated

    return decorate


def _configured(file: Path | None) -> Config:
    try:
        return load(file, Path.cwd())
    except ConfigError as error:
        raise click.UsageError(f"configuration: {error}") from None
    except FileNotFoundError:
        return Config()  # the current folder was removed: there is no configuration in it


def _number(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # NaN is within every range
        raise click.BadParameter("nan is no number of seconds.", context, parameter)
    return value


def _options(
    formats: Sequence[str], judging: bool, timed: bool
) -> list[Callable[[Callable[..., int]], Callable[..., int]]]:
    codes = "Codes or prefixes of codes, separated by commas; may be given again."
    options = [
        click.option(
            "--format",
            "output_format",
            type=click.Choice(formats),
            help=f"Output format. [default: {formats[0]}]",
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write the output to FILE, as a whole or not at all.",
        ),
        click.option("--select", multiple=True, metavar="CODES", help=f"Only these checks. {codes}"),
        click.option("--ignore", multiple=True, metavar="CODES", help=f"Not these checks. {codes}"),
    ]
    if timed:
        options.append(
            click.option(
                "--deadline",
                type=SECONDS,
                callback=_number,
                metavar="SECONDS",
                help="Time for the whole command; what is not known by then is reported as such.",
            )
        )
    if judging:
        options.append(click.option("--strict/--no-strict", default=None, help="Count warnings as failures."))
    return [
        *options,
        click.option("--verbose", is_flag=True, help="Also show passes, skips and evidence."),
        click.option(
            "--no-color", is_flag=True, help="No colour; NO_COLOR in the environment does the same."
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Configuration file. [default: the nearest fsdp-doctor.toml, or pyproject.toml with "
            "[tool.fsdp-doctor], up to the root of the git repository]",
        ),
    ]
