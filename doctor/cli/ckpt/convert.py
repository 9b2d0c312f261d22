"""`fsdp-doctor ckpt convert`: the same tensors in another format, by copying bytes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fsdp_doctor.ckpt.convert.cast import FLOATS
from fsdp_doctor.ckpt.convert.here import SHARD_BYTES, TO, Converted, Order
from fsdp_doctor.ckpt.convert.model import ConvertError
from fsdp_doctor.ckpt.path import is_remote
from fsdp_doctor.cli.common import Settings, common

SECONDS = 7 * 24 * 3600.0
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def shard_bytes(context: click.Context, option: click.Parameter, text: str) -> int:
    """Bytes of "5GB", "500MB", "2GiB"."""
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no size such as 5GB or 500MB")
    unit = UNITS[found[2].upper()]
    if found[3]:
        unit = 1 << (10 * list(UNITS).index(found[2].upper()))
    size = int(float(found[1]) * unit)
    if size < 1:
        raise click.BadParameter("wanted a size above zero")
    return size


@click.command("convert", short_help="The same tensors in another format.")
@common("text", "json")
@click.option(
    "--to",
    required=True,
    type=click.Choice(TO),
    help="dcp: a folder for dcp.load; torch: one torch.save file of whole tensors; safetensors: model "
    "weights, with a Hugging Face index where they are several files; merge-metadata: one .metadata for a "
    "save with use_collectives=False.",
)
@click.option("--model-only", is_flag=True, help="Leave out the optimizer and everything else.")
@click.option("--strip-prefix", default="", metavar="PREFIX", help="Take it from the model's names: module.")
@click.option("--add-prefix", default="", metavar="PREFIX", help="Put it before the model's names.")
@click.option(
    "--dtype",
    type=click.Choice(FLOATS),
    help="Cast the model's floating-point tensors. [default: bytes are copied as they are]",
)
@click.option(
    "--max-shard-size",
    default=f"{SHARD_BYTES // 10**9}GB",
    show_default=True,
    callback=shard_bytes,
    metavar="SIZE",
    help="Of one file of safetensors or DCP.",
)
@click.option("--overwrite", is_flag=True, help="Replace DST where it exists, once the new one is whole.")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
def command(
    settings: Settings,
    source: str,
    target: str,
    to: str,
    model_only: bool,
    strip_prefix: str,
    add_prefix: str,
    dtype: str | None,
    max_shard_size: int,
    overwrite: bool,
) -> int:
    """Copy a checkpoint into another format: bytes as they are, in blocks, nothing of it run.

    DST appears when it is whole; a run that was interrupted goes on when it is called again. Values are
    compared with their stored checksums on the way. What cannot be written exactly is refused.
    """
    if not is_remote(source) and not os.path.lexists(source):
        raise click.UsageError(f"{source}: there is no such file or folder")
    target = target.rstrip("/") or target
    same = os.path.realpath(source) == os.path.realpath(target)
    if to == "merge-metadata":
        if model_only or strip_prefix or add_prefix or dtype:
            raise click.UsageError("--to merge-metadata moves no tensor: it takes no other option")
    elif same:
        raise click.UsageError("SRC and DST are the same")
    if is_remote(target):
        raise click.UsageError(f"{target}: DST must be a local path")
    if os.path.realpath(target).startswith(os.path.realpath(source) + os.sep):
        raise click.UsageError("DST lies within SRC: name a place beside it")
    if os.path.lexists(target) and not same and not overwrite:
        raise click.UsageError(f"{target} exists; --overwrite replaces it")
    order = Order(
        source, target, to, strip_prefix, add_prefix, dtype, model_only or to == "safetensors", max_shard_size
    )
    done = _converted(order, settings, overwrite and not same)
    return _answer(order, done, settings)


def _converted(order: Order, settings: Settings, overwrite: bool) -> Converted:
    from dataclasses import replace

    from fsdp_doctor.ckpt.convert.run import convert

    seconds = settings.deadline if settings.deadline is not None else SECONDS
    exists = overwrite and os.path.lexists(order.target)
    beside = f"{order.target}.new" if exists else order.target
    if exists and order.target.endswith(".safetensors"):
        beside = order.target.removesuffix(".safetensors") + ".new.safetensors"
    if exists and os.path.lexists(beside):
        raise click.UsageError(f"{beside} exists: remove it first")
    try:
        with _bar() as progress:
            done = convert(replace(order, target=beside), seconds, progress)
        if exists:
            _replace(beside, order.target)
    except (ConvertError, TimeoutError) as error:
        from fsdp_doctor.report.escape import one_line

        raise click.ClickException(one_line(f"{order.source}: {error}")) from None
    except OSError as error:
        raise click.ClickException(f"{order.target}: {error.strerror or error}") from None
    done.target = order.target
    return done


def _replace(new: str, old: str) -> None:
    """Put the new one in the place of the old one, which is removed afterwards."""
    aside = f"{old}.old-{os.getpid()}"
    os.rename(old, aside)
    os.rename(new, old)
    if os.path.isdir(aside) and not os.path.islink(aside):
        shutil.rmtree(aside)
    else:
        os.unlink(aside)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    from fsdp_doctor.cli.output import is_terminal

    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("converting", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total or None)


def _answer(order: Order, done: Converted, settings: Settings) -> int:
    from fsdp_doctor.cli.ckpt.tree import size
    from fsdp_doctor.cli.reporting import answer
    from fsdp_doctor.report.escape import one_line

    words = [f"{done.format} -> {order.to}: {order.target}"]
    if order.to == "merge-metadata":
        words.append(f"one .metadata for {done.tensors} tensors; no tensor was moved")
    else:
        many = f" in {done.files} files" if done.files > 1 else ""
        cast = f", the model cast to {done.cast}" if done.cast else ", bytes as they were"
        words.append(f"{done.tensors} tensors, {size(done.bytes)}{many}{cast}, in {done.seconds:.1f} s")
    if done.renamed:
        words.append(f"{done.renamed} names changed")
    if done.left_out:
        words.append(f"left out, not of the model: {', '.join(done.left_out)}")
    if done.resumed:
        words.append(f"{size(done.resumed)} were there from an interrupted run, and match their checksums")
    data: dict[str, object] = {
        "source": order.source,
        "target": str(Path(order.target)),
        "from": done.format,
        "to": order.to,
        "tensors": done.tensors,
        "bytes": done.bytes,
        "files": done.files,
        "left_out": list(done.left_out),
        "dtype": done.cast,
        "renamed": done.renamed,
        "resumed_bytes": done.resumed,
        "seconds": round(done.seconds, 3),
    }
    return answer("ckpt convert", data, "".join(f"{one_line(w)}\n" for w in words), settings)
