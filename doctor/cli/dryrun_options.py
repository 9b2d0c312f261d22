"""The command line of `dryrun` as a job."""

from __future__ import annotations

from collections.abc import Callable

import click

from fsdp_doctor.cli.dryrun_given import check_folder, check_function, json_object
from fsdp_doctor.memory.job import APIS, DTYPES, OPTIMIZERS, SHORT, Job, JobError
from fsdp_doctor.tables.gpu_memory import Product, names, product

MOST_RANKS = 1 << 17
"""Ranks up to which torch makes its process groups and meshes in a minute."""


def job_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that describe a training configuration."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Callable[..., int]], Callable[..., int]], ...] = (
    click.option(
        "--model",
        required=True,
        metavar="FACTORY",
        help="FILE.py:FACTORY or pkg.mod:FACTORY, a function that returns the nn.Module; its forward takes "
        "the batch and returns a scalar loss. Or hf:DIR, a folder with a transformers config.json.",
    ),
    click.option("--model-args", metavar="JSON", help="Keyword arguments of FACTORY, as a JSON object."),
    click.option(
        "--batch",
        metavar="FUNC",
        help="FILE.py:FUNC, a function of a device that returns one batch as a tuple. "
        "[default for hf: ids, pictures or sounds]",
    ),
    click.option("--batch-args", metavar="JSON", help="Keyword arguments of FUNC, as a JSON object."),
    click.option(
        "--world-size", type=click.IntRange(1, MOST_RANKS), required=True, metavar="N", help="Ranks."
    ),
    click.option(
        "--shard-size",
        type=click.IntRange(1, MOST_RANKS),
        metavar="K",
        help="Ranks of one shard group (hybrid sharding).",
    ),
    click.option("--api", type=click.Choice(APIS), default="fsdp2", help="[default: fsdp2]"),
    click.option(
        "--strategy",
        default="FULL_SHARD",
        metavar="STRATEGY",
        help="FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or RESHARD_INT:k. [default: FULL_SHARD]",
    ),
    click.option(
        "--wrap",
        multiple=True,
        metavar="CLASSES",
        help="Classes whose modules are units, separated by commas. [default: the whole model is one unit]",
    ),
    click.option("--param-dtype", metavar="DTYPE", help="Mixed precision: dtype of gathered parameters."),
    click.option("--reduce-dtype", metavar="DTYPE", help="Mixed precision: dtype of gradient reduction."),
    click.option(
        "--optimizer", default="adamw", metavar="NAME", help=f"{', '.join(OPTIMIZERS)}. [default: adamw]"
    ),
    click.option(
        "--checkpoint-activations",
        "checkpoint",
        multiple=True,
        metavar="CLASSES",
        help="Classes whose activations are computed again in backward.",
    ),
    click.option(
        "--accumulate", type=click.IntRange(1, 4096), default=1, metavar="N", help="Microbatches per step."
    ),
    click.option("--no-sync", is_flag=True, help="Accumulate without reducing gradients in between."),
    click.option("--clip", is_flag=True, help="Clip the gradients' norm."),
    click.option("--offload", is_flag=True, help="Keep parameters and optimizer state on the host."),
    click.option(
        "--ranks-per-node",
        type=click.IntRange(1, 1 << 10),
        default=8,
        metavar="N",
        help="Ranks that share a node's host memory. [default: 8]",
    ),
    click.option(
        "--host-memory",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GIB",
        help="Memory of a node, which its ranks share.",
    ),
    click.option(
        "--dtype", metavar="DTYPE", help="dtype of the original parameters. [default: the model's own]"
    ),
    click.option("--autocast", metavar="DTYPE", help="Run forward under torch.autocast."),
    click.option(
        "--imbalance",
        type=click.FloatRange(1.0, 1024.0),
        default=1.0,
        metavar="X",
        help="Mixture of experts: the busiest expert gets X times its share. [default: 1]",
    ),
    click.option(
        "--ignored-modules",
        "ignored",
        multiple=True,
        metavar="CLASSES",
        help="Classes whose parameters are kept out of sharding.",
    ),
    click.option(
        "--use-orig-params/--no-use-orig-params", default=True, help="FSDP1's argument. [default: yes]"
    ),
    click.option(
        "--forward-prefetch",
        type=click.IntRange(0, 64),
        default=0,
        metavar="N",
        help="Units that each unit gathers ahead in forward; fsdp1: 1 is forward_prefetch=True. [default: 0]",
    ),
    click.option(
        "--backward-prefetch",
        metavar="HOW",
        help="fsdp1: pre, post or none [default: pre]; fsdp2: units ahead. [default: 1]",
    ),
    click.option(
        "--limit-all-gathers/--no-limit-all-gathers", default=True, help="FSDP1's argument. [default: yes]"
    ),
    click.option(
        "--bucket-cap-mb", type=click.FloatRange(min=0.001), metavar="MB", help="DDP's. [default: 25]"
    ),
    click.option("--gradient-as-bucket-view", is_flag=True, help="DDP's argument."),
    click.option("--static-graph", is_flag=True, help="DDP's argument."),
    click.option("--find-unused-parameters", is_flag=True, help="DDP's argument."),
    click.option(
        "--keep-ties",
        is_flag=True,
        help="FSDP1, DDP: tied weights stay one, as in a model that is built with memory. [default: apart, "
        "as Module.to_empty makes them of meta tensors]",
    ),
    click.option(
        "--plan-only", is_flag=True, help="Read the units off the model and judge them; replay no step."
    ),
    click.option("--gpu", metavar="GPU", help='A product such as "H100 80GB", or a number of GiB.'),
)


def job_of(own: dict[str, object]) -> Job:
    """The job that the options describe. Raises `click.UsageError`."""
    model, batch = own["model"], own["batch"]
    assert isinstance(model, str)
    if model.startswith("hf:"):
        check_folder(model)
    else:
        check_function("--model", model, "FILE.py:FACTORY, pkg.mod:FACTORY or hf:DIR")
    if batch is None and not model.startswith("hf:") and not own["plan_only"]:
        raise click.UsageError(
            "--batch FILE.py:FUNC is needed: a function of a device that returns one batch"
        )
    if batch is not None:
        check_function("--batch", str(batch), "FILE.py:FUNC or pkg.mod:FUNC")
    job = Job(
        model=model,
        batch=str(batch) if batch is not None else None,
        world_size=_int(own["world_size"]),
        model_args=json_object("--model-args", own["model_args"]),
        batch_args=json_object("--batch-args", own["batch_args"]),
        api=str(own["api"]),
        strategy=strategy_of(str(own["strategy"])),
        shard_size=_int(own["shard_size"]) if own["shard_size"] is not None else None,
        wrap=_classes(own["wrap"]),
        checkpoint=_classes(own["checkpoint"]),
        param_dtype=_dtype("--param-dtype", own["param_dtype"]),
        reduce_dtype=_dtype("--reduce-dtype", own["reduce_dtype"]),
        dtype=_dtype("--dtype", own["dtype"]),
        autocast=_dtype("--autocast", own["autocast"]),
        optimizer=str(own["optimizer"]),
        accumulate=_int(own["accumulate"]),
        no_sync=bool(own["no_sync"]),
        clip=bool(own["clip"]),
        offload=bool(own["offload"]),
        imbalance=own["imbalance"] if isinstance(own["imbalance"], float) else 1.0,
        ignored=_classes(own["ignored"]),
        use_orig_params=bool(own["use_orig_params"]),
        plan_only=bool(own["plan_only"]),
        ranks_per_node=_int(own["ranks_per_node"]),
        host_gib=own["host_memory"] if isinstance(own["host_memory"], float) else None,
        forward_prefetch=_int(own["forward_prefetch"]),
        backward_prefetch=str(own["backward_prefetch"]) if own["backward_prefetch"] is not None else None,
        limit_all_gathers=bool(own["limit_all_gathers"]),
        bucket_cap_mb=own["bucket_cap_mb"] if isinstance(own["bucket_cap_mb"], float) else None,
        gradient_as_bucket_view=bool(own["gradient_as_bucket_view"]),
        static_graph=bool(own["static_graph"]),
        find_unused_parameters=bool(own["find_unused_parameters"]),
        keep_ties=bool(own["keep_ties"]),
    )
    try:
        job.validate()
    except JobError as error:
        raise click.UsageError(str(error)) from None
    return job


def gpu_of(own: dict[str, object]) -> Product | None:
    """The GPU that is named. Raises `click.UsageError` for one that no table has."""
    said = own["gpu"]
    if said is None:
        return None
    found = product(str(said))
    if found is None:
        raise click.UsageError(
            f"--gpu {said}: no such GPU in the table; say its memory in GiB, or one of: {', '.join(names())}"
        )
    return found


def strategy_of(said: str) -> str:
    """In capitals, as torch writes it; accelerate, transformers and Lightning write full_shard."""
    name = said.strip().upper().replace("-", "_")
    return f"_{name}" if name == "HYBRID_SHARD_ZERO2" else name


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _classes(value: object) -> tuple[str, ...]:
    given = value if isinstance(value, tuple) else ()
    return tuple(dict.fromkeys(c.strip() for v in given for c in str(v).split(",") if c.strip()))


def _dtype(flag: str, value: object) -> str | None:
    if value is None:
        return None
    name = str(value).removeprefix("torch.").lower()
    name = SHORT.get(name, name)
    if name not in DTYPES:
        raise click.UsageError(f"{flag} {value}: one of {', '.join(DTYPES)}")
    return name
