"""`fsdp-doctor ckpt inspect`: what is in a checkpoint, and is it whole?"""

from __future__ import annotations

import os
import time

import click

from fsdp_doctor.ckpt.path import is_remote
from fsdp_doctor.ckpt.read import DEADLINE, begin
from fsdp_doctor.cli.common import Settings, common

KINDS = ("model", "optimizer", "other")
"""Values of `subjects.checkpoint.Kind`, which is imported while the child reads."""
VERIFY_SECONDS = 7 * 24 * 3600.0


@click.command("inspect", short_help="What a checkpoint holds, and whether it is whole.")
@common("text", "json", "junit", "github", judging=True)
@click.option("--verify", is_flag=True, help="Read all data once and compare checksums.")
@click.option(
    "--filter",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only tensors whose key holds this, or matches it with * and ?; may be given again.",
)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these.")
@click.option("--dtype", "dtypes", multiple=True, metavar="DTYPE", help="Only these, such as bfloat16.")
@click.option("--depth", type=click.IntRange(1, 1000), metavar="N", help="Levels of the tree. [default: all]")
@click.option(
    "--no-values", is_flag=True, help="Read metadata only, none of the small objects in data files."
)
@click.argument("path", metavar="PATH")
def command(
    settings: Settings,
    path: str,
    verify: bool,
    patterns: tuple[str, ...],
    kinds: tuple[str, ...],
    dtypes: tuple[str, ...],
    depth: int | None,
    no_values: bool,
) -> int:
    """Say what a checkpoint is and holds: tensors, chunks, ranks, optimizer, step, files, and what is wrong.

    PATH is a folder, a file, or a URL of fsspec. Nothing in it is run and no tensor is read; with --verify
    all bytes are read once and compared with the checksums that torch.save stores and torch never checks.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    if not is_remote(path) and not os.path.lexists(path):
        raise click.UsageError(f"{path}: there is no such file or folder")
    reading = begin(path, values=not no_values)
    # Imported while the child reads.
    from fsdp_doctor.cli.ckpt.figures import figures
    from fsdp_doctor.cli.ckpt.inspect_text import render
    from fsdp_doctor.cli.ckpt.on_disk import judge, unjudged
    from fsdp_doctor.cli.ckpt.tree import chosen
    from fsdp_doctor.cli.reporting import now, rendered
    from fsdp_doctor.cli.version import tool
    from fsdp_doctor.findings import Report
    from fsdp_doctor.report.describe import counts_words

    started = now()
    index = reading.result(settings.deadline if settings.deadline is not None else DEADLINE)
    data: dict[str, object] = {}
    said = ""
    if verify:
        from fsdp_doctor.cli.ckpt.verifying import verified, verified_words

        until = began + (settings.deadline if settings.deadline is not None else VERIFY_SECONDS)
        index, data["verified"] = verified(index, path, until)
        said = verified_words(data["verified"])
    shown = chosen(index.tensors, patterns, kinds, dtypes)
    data = {**figures(index, shown if settings.format == "json" else ()), **data}
    report = Report(
        command="ckpt inspect",
        results=judge(index, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": path, **data},
        unjudged=unjudged(index),
        strict=settings.strict,
    )
    text = rendered(report, settings)
    if settings.format == "text":
        text = render(index, shown, settings.style(), depth, said) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code
