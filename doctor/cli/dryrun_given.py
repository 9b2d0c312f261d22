"""What of a dry-run's command line can be judged before a child is started for it."""

from __future__ import annotations

import json
from pathlib import Path

import click


def check_function(flag: str, said: str, forms: str) -> None:
    """Raises `click.UsageError` for what names no function, and for a file that is not there."""
    source, _, name = said.rpartition(":")
    if not source or not name.isidentifier():
        raise click.UsageError(f"{flag} {said}: {forms}")
    path = Path(source)
    if source.endswith(".py"):
        if not path.is_file():
            raise click.UsageError(f"{flag} {said}: there is no file {path.absolute()}")
    elif path.is_file():
        raise click.UsageError(f"{flag} {said}: {source} is no Python file (*.py)")
    elif not all(part.isidentifier() for part in source.split(".")):
        raise click.UsageError(f"{flag} {said}: {source} is neither a .py file nor the name of a module")


def check_folder(said: str) -> None:
    """Raises `click.UsageError` for a folder of transformers without its configuration."""
    folder = Path(said.removeprefix("hf:"))
    if not (folder / "config.json").is_file():
        raise click.UsageError(f"--model {said}: there is no {folder / 'config.json'}")


def json_object(flag: str, value: object) -> dict[str, object]:
    """The object that a flag's text is, empty without one. Raises `click.UsageError`."""
    if value is None:
        return {}
    try:
        found = json.loads(str(value), parse_constant=_no_json)
    except RecursionError:
        raise click.UsageError(f"{flag}: nested too deeply") from None
    except ValueError as error:
        raise click.UsageError(f"{flag}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError(f'{flag}: a JSON object such as {{"layers": 4}} is wanted')
    return found


def _no_json(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")
