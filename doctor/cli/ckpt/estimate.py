"""`fsdp-doctor ckpt estimate`: memory and disk of each way to save and to load, against this machine."""

from __future__ import annotations

import os
import re
import socket
import time

import click

from fsdp_doctor.ckpt.estimate import Job, Sizes, costs, of_checkpoint, of_count, of_model, resident
from fsdp_doctor.cli.ckpt.convert import shard_bytes
from fsdp_doctor.cli.ckpt.limits import limits_of
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.findings import Result
from fsdp_doctor.subjects.checkpoint_cost import CostPlan, Way
from fsdp_doctor.subjects.load_target import TargetModel
from fsdp_doctor.tables.optimizers import STATES
from fsdp_doctor.tables.torch_dtypes import ITEM_BITS

MODEL_SECONDS = 120.0
COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
NODE = 8
"""GPUs of a node where nothing tells."""
APIS = ("fsdp2", "fsdp1", "ddp")


def count(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parameters of "8B", "350M" or a number."""
    if text is None:
        return None
    found = COUNT.fullmatch(text.strip().replace("_", ""))
    number = 0 if found is None else int(float(found[1]) * UNITS[found[2].upper()])
    if not 1 <= number <= 10**15:
        raise click.BadParameter(f"{text!r} is no number of parameters such as 8B or 350M")
    return number


def memory(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Bytes of "512GiB"; a bare number counts GiB."""
    if text is None:
        return None
    return shard_bytes(context, option, f"{text}GiB" if text.replace(".", "", 1).isdigit() else text)


@click.command("estimate", short_help="Memory and disk of each way to save and to load.")
@common("text", "json", "junit", "github", judging=True)
@click.option("--params", callback=count, metavar="N", help="Parameters of the model: 8B, 350M.")
@click.option(
    "--dtype", type=click.Choice(sorted(ITEM_BITS)), default="float32", show_default=True,
    help="In which --params are held: FSDP's mixed precision keeps float32.",
)  # fmt: skip
@click.option(
    "--model", metavar="FILE.py:FACTORY|pkg.mod:FACTORY|hf:DIR",
    help="The model itself, built on the meta device in a child.",
)  # fmt: skip
@click.option("--model-args", metavar="JSON", help="Keyword arguments of the factory.")
@click.option("--python", metavar="EXE", help="The Python that builds the model, where it is another one.")
@click.option("--optimizer", type=click.Choice(sorted(STATES)), default="adamw", show_default=True)
@click.option("--model-only", is_flag=True, help="The optimizer is neither saved nor loaded.")
@click.option(
    "--world-size", type=click.IntRange(1, 1 << 20), metavar="N", help="Ranks. [default: of this job, else 8]"
)
@click.option(
    "--ranks-per-node", type=click.IntRange(1, 1024), metavar="G", help="[default: of this job, else 8]"
)
@click.option(
    "--api", type=click.Choice(APIS), default="fsdp2", show_default=True, help="How the model is spread."
)
@click.option(
    "--way", "ways", multiple=True, type=click.Choice([w.value for w in Way]),
    help="Judge this way alone, which you use; may be given again. It fails where it does not fit.",
)  # fmt: skip
@click.option(
    "--host-memory", callback=memory, metavar="SIZE", help="Free memory of a node. [default: of this machine]"
)
@click.option(
    "--gpu-memory", callback=memory, metavar="SIZE", help="Of one GPU. [default: of this machine's]"
)
@click.option(
    "--to", "folder", metavar="DIR", help="Where it saves: free space counts. [default: PATH, or here]"
)
@click.argument("path", metavar="[PATH]", required=False)
def command(
    settings: Settings,
    path: str | None,
    params: int | None,
    dtype: str,
    model: str | None,
    model_args: str | None,
    python: str | None,
    optimizer: str,
    model_only: bool,
    world_size: int | None,
    ranks_per_node: int | None,
    api: str,
    ways: tuple[str, ...],
    host_memory: int | None,
    gpu_memory: int | None,
    folder: str | None,
) -> int:
    """Say what each way to save and to load takes beyond training: GPU and host memory, per node, and disk.

    The model is a checkpoint at PATH, --params or --model. Limits are those of this machine (free memory, its
    control group, its GPUs, free space) where none are given.
    """
    from fsdp_doctor.cli.ckpt.estimate_text import render
    from fsdp_doctor.cli.reporting import now, rendered
    from fsdp_doctor.cli.version import tool
    from fsdp_doctor.findings import Report
    from fsdp_doctor.report.describe import counts_words

    began = click.get_current_context().obj
    assert isinstance(began, float)
    if sum(v is not None for v in (path, params, model)) != 1:
        raise click.UsageError("name the model once: a checkpoint's PATH, --params 8B, or --model")
    started = now()
    sizes = _sizes(path, params, dtype, model, model_args, python, optimizer, settings)
    if model_only:
        sizes = Sizes(sizes.parameters, 0, sizes.largest)
    ranks, node = _ranks(world_size, ranks_per_node)
    job = Job(ranks, node, api, sharded=api != "ddp" and ranks > 1)
    held = resident(sizes, job)
    place = folder or path or "."
    plan = CostPlan(
        costs(sizes, job),
        limits_of(held, host_memory, gpu_memory, place),
        ranks,
        node,
        sizes.parameters,
        sizes.optimizer,
        sizes.largest,
        api,
        tuple(Way(w) for w in ways),
    )
    report = Report(
        command="ckpt estimate",
        results=_results(plan, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data=_figures(plan, held),
        strict=settings.strict,
    )
    text = rendered(report, settings)
    if settings.format == "text":
        text = render(plan, held, settings.style()) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def _sizes(
    path: str | None,
    params: int | None,
    dtype: str,
    model: str | None,
    model_args: str | None,
    python: str | None,
    optimizer: str,
    settings: Settings,
) -> Sizes:
    if params is not None:
        return of_count(params, dtype, optimizer)
    if model is not None:
        return of_model(_model(model, model_args, python, settings), optimizer)
    from fsdp_doctor.ckpt.read import DEADLINE, read
    from fsdp_doctor.ckpt.reading import is_remote

    assert path is not None
    if not is_remote(path) and not os.path.lexists(path):
        raise click.UsageError(f"{path}: there is no such file or folder")
    index = read(path, settings.deadline if settings.deadline is not None else DEADLINE, values=False)
    if not index.tensors:
        why = index.problems[0].detail if index.problems else "it holds no tensors"
        raise click.UsageError(f"{path}: {why}")
    return of_checkpoint(index)


def _model(spec: str, arguments: str | None, python: str | None, settings: Settings) -> TargetModel:
    import json

    from fsdp_doctor.ckpt.model import ModelError, ask
    from fsdp_doctor.cli.sources import interpreter

    try:
        given = json.loads(arguments) if arguments else {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise click.UsageError("--model-args: wanted a JSON object, such as '{\"layers\": 2}'")
    seconds = settings.deadline if settings.deadline is not None else MODEL_SECONDS
    try:
        return ask(spec, given, interpreter(python) if python else None, seconds)
    except ModelError as error:
        raise click.UsageError(str(error)) from None


def _ranks(world_size: int | None, per_node: int | None) -> tuple[int, int]:
    """Of the options, else of the job that this runs in."""
    from fsdp_doctor.facts.scheduler import read_scheduler

    job = read_scheduler(os.environ)
    ranks = world_size or (job.world_size if job.launcher != "none" else None) or NODE
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    node = per_node or (int(local) if local.isdigit() and world_size is None else None) or NODE
    return ranks, max(1, min(node, ranks))


def _results(plan: CostPlan, settings: Settings) -> tuple[Result, ...]:
    from fsdp_doctor.cli.ckpt.on_disk import checks_of
    from fsdp_doctor.engine.options import Options
    from fsdp_doctor.engine.runner import run_checks
    from fsdp_doctor.subjects.fact import Facts, Known
    from fsdp_doctor.subjects.scheduler import Identity

    facts = Facts({CostPlan: Known(plan), Identity: Known(Identity(socket.gethostname(), None, None))})
    return run_checks(checks_of(settings, ("CKP100", "CKP101")), facts, Options())


def _figures(plan: CostPlan, held: int) -> dict[str, object]:
    limits = plan.limits
    return {
        "world_size": plan.world_size,
        "ranks_per_node": plan.ranks_per_node,
        "api": plan.api,
        "parameter_bytes": plan.parameters,
        "optimizer_bytes": plan.optimizer,
        "largest_tensor_bytes": plan.largest,
        "gpu_held_bytes": held,
        "limits": {
            "host_bytes": limits.host,
            "host_source": limits.host_source or None,
            "gpu_left_bytes": limits.gpu,
            "gpu_source": limits.gpu_source or None,
            "disk_bytes": limits.disk,
            "disk_path": limits.disk_path or None,
        },
        "ways": [
            {
                "way": c.way.value,
                "saves": c.saves,
                "call": c.call,
                "gpu_per_rank_bytes": c.gpu_per_rank,
                "host_rank0_bytes": c.host_rank0,
                "host_per_rank_bytes": c.host_per_rank,
                "host_per_node_bytes": c.host_per_node,
                "page_cache_per_node_bytes": c.page_cache_per_node,
                "disk_bytes": c.disk,
                "advised": c.advised,
                "note": c.note,
            }
            for c in plan.costs
        ],
    }
