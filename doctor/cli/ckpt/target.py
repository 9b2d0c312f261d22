"""What will load the checkpoint, from flags, a job file, a launch command or the job that this runs in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
import yaml

from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.facts.scheduler import read_scheduler
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.load_target import Api, LoadApi, LoadTarget, TargetModel
from fsdp_doctor.tables.optimizers import STATES

Command = TypeVar("Command", bound=Callable[..., object])
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
WORLD_LIMIT = 1 << 20
JOB_LIMIT = 1 << 20
"""Bytes of a job file."""
JOB_KEYS = (
    "world_size", "api", "load_api", "strategy", "model", "model_args", "wrap", "use_orig_params",
    "optimizer", "param_groups", "model_only", "partial", "flat_optimizer", "weights_only", "scheduler",
    "primed", "root",
)  # fmt: skip


def target_options(command: Command) -> Command:
    """Add the options that describe what loads; `target` takes them out of the arguments again."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--world-size",
        type=click.IntRange(1, WORLD_LIMIT),
        metavar="N",
        help="Ranks that will load it. [default: of the launch command, or of the job that this runs in]",
    ),
    click.option(
        "--api",
        type=click.Choice([a.value for a in Api]),
        help="How the model is spread. [default: fsdp2, fsdp1_mesh and fsdp1 are judged]",
    ),
    click.option(
        "--load-api",
        type=click.Choice([a.value for a in LoadApi]),
        help="state_dict: get_state_dict, dcp.load, set_state_dict; raw: load_state_dict of both; per_rank: "
        "torch.load of a file per rank. [default: what the format is made for]",
    ),
    click.option("--strategy", type=click.Choice(STRATEGIES), help="Of FSDP1."),
    click.option(
        "--model",
        metavar="FILE.py:FACTORY|pkg.mod:FACTORY|hf:DIR",
        help="The model: its names, sizes and dtypes are compared. Built on the meta device in a child.",
    ),
    click.option("--model-args", metavar="JSON", help="Keyword arguments of the factory."),
    click.option("--wrap", metavar="CLASS,…", help="Classes that are units of their own."),
    click.option("--use-orig-params/--no-use-orig-params", default=None, help="Of FSDP1."),
    click.option(
        "--optimizer", type=click.Choice(sorted(STATES)), help="The optimizer that loads its state."
    ),
    click.option("--param-groups", type=click.IntRange(1, 10_000), metavar="N", help="Its parameter groups."),
    click.option("--model-only", is_flag=True, default=None, help="The optimizer's state is not loaded."),
    click.option(
        "--partial", is_flag=True, default=None, help="With allow_partial_load=True or strict=False."
    ),
    click.option(
        "--flat-optimizer/--nested-optimizer",
        default=None,
        help="With or without flatten_optimizer_state_dict. [default: as saved]",
    ),
    click.option(
        "--weights-only/--no-weights-only",
        default=None,
        help="torch.load's weights_only. [default: true, as of torch 2.6]",
    ),
    click.option(
        "--scheduler/--no-scheduler",
        default=None,
        help="A learning-rate scheduler is made before the optimizer's state is loaded.",
    ),
    click.option(
        "--primed/--not-primed",
        default=None,
        help="With --load-api raw: the optimizer has stepped once before.",
    ),
    click.option(
        "--root",
        metavar="KEY",
        help="The key under which the model is asked for, '' for none. [default: as saved]",
    ),
    click.option(
        "--job",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="These options in a YAML or JSON file, such as world_size: 64; flags go before it.",
    ),
    click.option(
        "--python", metavar="EXE", help="The Python that builds the model, where it is another one."
    ),
)


def target(
    own: Mapping[str, object],
    words: Sequence[str],
    environment: Mapping[str, str],
    ask: Callable[[str, Mapping[str, object]], TargetModel],
) -> LoadTarget:
    """The target. `ask` builds the model and raises what it raises; else `click.UsageError`."""
    said = _merged(own)
    launch = _launch(words, environment)
    world, source = _world(said, launch, environment)
    model = said.get("model")
    arguments = said.get("model_args") or {}
    if isinstance(arguments, str):
        arguments = _json(arguments)
    wrap = said.get("wrap")
    names = wrap.split(",") if isinstance(wrap, str) else wrap
    try:
        return LoadTarget(
            world_size=world,
            world_source=source,
            api=Api(said["api"]) if said.get("api") else None,
            load_api=LoadApi(said["load_api"]) if said.get("load_api") else None,
            strategy=_text(said, "strategy"),
            wrap=tuple(str(n).strip() for n in names if str(n).strip()) if isinstance(names, list) else None,
            use_orig_params=_flag(said, "use_orig_params"),
            model=ask(model, arguments) if isinstance(model, str) and isinstance(arguments, dict) else None,
            optimizer=_text(said, "optimizer"),
            param_groups=_count(said, "param_groups"),
            model_only=bool(_flag(said, "model_only")),
            partial=bool(_flag(said, "partial")),
            flat_optimizer=_flag(said, "flat_optimizer"),
            weights_only=_flag(said, "weights_only"),
            scheduler=_flag(said, "scheduler"),
            primed=_flag(said, "primed"),
            root=_text(said, "root"),
        )
    except ValueError as error:
        raise click.UsageError(f"--job: {error}") from None


def _merged(own: Mapping[str, object]) -> dict[str, object]:
    """Flags over the job file."""
    flags = {k: own[k] for k in JOB_KEYS if own.get(k) is not None}
    job = own.get("job")
    return {**(_job(job) if isinstance(job, Path) else {}), **flags}


def _job(path: Path) -> dict[str, object]:
    try:
        if not path.is_file():
            raise click.UsageError(f"--job {path}: no such file")
        with path.open("rb") as file:
            text = file.read(JOB_LIMIT + 1)
        held = yaml.safe_load(text[:JOB_LIMIT].decode("utf-8"))
    except OSError as error:
        raise click.UsageError(f"--job {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise click.UsageError(f"--job {path}: is no YAML or JSON that can be read") from None
    if not isinstance(held, dict):
        raise click.UsageError(f"--job {path}: wanted names and values, such as world_size: 64")
    given = {str(k).replace("-", "_"): v for k, v in held.items()}
    strange = sorted(set(given) - set(JOB_KEYS))
    if strange:
        raise click.UsageError(f"--job {path}: unknown {', '.join(strange)}; known are {', '.join(JOB_KEYS)}")
    return {k: v for k, v in given.items() if v is not None}


def _json(text: str) -> dict[str, object]:
    try:
        held = json.loads(text)
    except ValueError:
        held = None
    if not isinstance(held, dict):
        raise click.UsageError("--model-args: wanted a JSON object, such as '{\"layers\": 2}'")
    return held


def _launch(words: Sequence[str], environment: Mapping[str, str]) -> Launch | None:
    if not words:
        return None
    try:
        return parse_launch(words, Path.cwd(), environment)
    except LaunchError as error:
        raise click.UsageError(f"launch command: {error}") from None


def _world(
    said: Mapping[str, object], launch: Launch | None, environment: Mapping[str, str]
) -> tuple[int | None, str]:
    size = _count(said, "world_size")
    if size is not None:
        return size, "--world-size"
    if launch is not None:
        return launched(launch), "the launch command"
    scheduler = read_scheduler(environment)
    if scheduler.launcher != "none" and scheduler.world_size:
        return scheduler.world_size, f"this job ({scheduler.launcher})"
    return None, ""


def launched(launch: Launch) -> int | None:
    """Ranks that a launch command starts, where it says so."""
    if launch.world_size is not None:
        return launch.world_size
    if launch.nproc_per_node is None:
        return None
    nodes = launch.nodes or (1, 1)
    return launch.nproc_per_node * nodes[0] if nodes[0] == nodes[1] else None


def _text(said: Mapping[str, object], key: str) -> str | None:
    value = said.get(key)
    if value is not None and not isinstance(value, str):
        raise click.UsageError(f"--job: {key}: wanted text")
    return value


def _flag(said: Mapping[str, object], key: str) -> bool | None:
    value = said.get(key)
    if value is not None and not isinstance(value, bool):
        raise click.UsageError(f"--job: {key}: wanted true or false")
    return value


def _count(said: Mapping[str, object], key: str) -> int | None:
    value = said.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= WORLD_LIMIT:
        raise click.UsageError(f"--job: {key}: wanted a whole number from 1 to {WORLD_LIMIT}")
    return value
