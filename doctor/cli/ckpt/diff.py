"""`fsdp-doctor ckpt diff`: what differs between two checkpoints?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import click

from fsdp_doctor.ckpt.checksums import Checksums
from fsdp_doctor.ckpt.diff import Changed, Difference, compare
from fsdp_doctor.ckpt.path import is_remote
from fsdp_doctor.ckpt.read import DEADLINE, begin
from fsdp_doctor.cli.ckpt.on_disk import unjudged
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.progress import shown as waiting
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.version import tool
from fsdp_doctor.codec import to_json
from fsdp_doctor.findings import Report
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Tensor

LISTED = 20
"""Lines per kind of difference; --verbose shows all."""
DIFFERENT = 1


@click.command("diff", short_help="What differs between two checkpoints.")
@common("text", "json", deadline=True)
@click.option("--values", is_flag=True, help="Compare values too, by the checksums that are stored in them.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where they differ, as `git diff` does.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
def command(settings: Settings, first: str, second: str, values: bool, exit_code: bool) -> int:
    """Compare names, shapes, dtypes and plain values of A and B, whatever their formats.

    With --values the tensors' CRC-32s are compared: torch.save and DCP store them, so that no data is read
    but that of safetensors, and saves on different numbers of ranks can be compared.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    started = now()
    for path in (first, second):
        if not is_remote(path) and not os.path.lexists(path):
            raise click.UsageError(f"{path}: there is no such file or folder")
    readings = [begin(path) for path in (first, second)]
    deadline = settings.deadline if settings.deadline is not None else DEADLINE
    a, b = (reading.result(deadline) for reading in readings)
    unread = tuple(line for index in (a, b) for line in _unread(index))
    with waiting("comparing checksums"):
        found = compare(a, b, _values(a, b, first, second) if values else None)
    report = Report(
        command="ckpt diff",
        results=(),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": f"{first} {second}", **_data(found, a, b, values)},
        unjudged=unread,
    )
    if settings.format == "json":
        settings.deliver(rendered(report, settings))
    else:
        settings.deliver(_text(found, a, b, values, unread, settings.style()))
    if unread:
        return report.exit_code
    return DIFFERENT if exit_code and not found.equal else 0


def _unread(index: CheckpointIndex) -> tuple[str, ...]:
    if index.tensors:
        return ()
    lines = unjudged(index)
    why = index.problems[0].detail if index.problems else "it holds no tensors"
    return lines or (f"{index.path}: {why}",)


class _Pairs:
    """Whether two tensors hold the same bytes."""

    def __init__(self, first: Checksums, second: Checksums) -> None:
        self._first, self._second = first, second

    def __call__(self, first: Tensor, second: Tensor) -> bool | None:
        """None where one of them has no checksum."""
        a, b = self._first.of(first), self._second.of(second)
        return None if a is None or b is None else a == b


def _values(a: CheckpointIndex, b: CheckpointIndex, first: str, second: str) -> _Pairs:
    return _Pairs(Checksums(a, first), Checksums(b, second))


def _data(found: Difference, a: CheckpointIndex, b: CheckpointIndex, values: bool) -> dict[str, object]:
    told: dict[str, object] = {
        "equal": found.equal,
        "tensors": [len(a.tensors), len(b.tensors)],
        "same": found.same,
        "only_in_a": [t.key for t in found.only_first],
        "only_in_b": [t.key for t in found.only_second],
        "shapes": [to_json(c) for c in found.shapes],
        "dtypes": [to_json(c) for c in found.dtypes],
        "entries": [to_json(c) for c in found.entries],
        "facts": [to_json(c) for c in found.facts],
        "renamed": found.renamed,
    }
    if values:
        told["values"] = {
            "equal": found.equal_values,
            "different": found.values,
            "not_compared": found.uncompared,
        }
    return told


def _text(
    found: Difference,
    a: CheckpointIndex,
    b: CheckpointIndex,
    values: bool,
    unread: Iterable[str],
    style: Style,
) -> str:
    page = Page(style)
    page.paragraph([("A  ", "bold"), (a.path, "")])
    page.paragraph([("B  ", "bold"), (b.path, "")])
    page.blank()
    for line in unread:
        page.paragraph([("cannot be compared: ", "bold"), (line, "")])
    _changed(page, "", found.facts)
    if found.renamed:
        page.paragraph([(f"nothing matches: {found.renamed}", "bold")])
    _keys(page, "only in A", [t.key for t in found.only_first])
    _keys(page, "only in B", [t.key for t in found.only_second])
    _changed(page, "shape", found.shapes)
    _changed(page, "dtype", found.dtypes)
    _changed(page, "value", found.entries)
    _keys(page, "other values", found.values)
    _keys(page, "values not compared (cut otherwise than by rows, or no checksum)", found.uncompared)
    stored = "by the checksums that they store"
    compared = f", values of {found.equal_values} are equal {stored}" if values else ""
    same = "no difference: " if found.equal else ""
    page.paragraph([(f"{same}{found.same} tensors have the same name, shape and dtype{compared}", "bold")])
    return page.text()


def _keys(page: Page, label: str, keys: list[str]) -> None:
    if not keys:
        return
    page.paragraph([(f"{label}: {len(keys)}", "bold")])
    listed = keys if page.style.verbose else keys[:LISTED]
    for key in listed:
        page.paragraph([(key, "")], first="  ", hang=2)
    if len(listed) < len(keys):
        page.paragraph(
            [(f"… {len(keys) - len(listed)} more: --verbose shows them", "dim")], first="  ", hang=2
        )


def _changed(page: Page, label: str, changes: list[Changed]) -> None:
    listed = changes if page.style.verbose else changes[:LISTED]
    for change in listed:
        words = f"{label} of {change.key}" if label else change.key
        page.paragraph([(f"{words}: ", "bold"), (f"{change.first} -> {change.second}", "")])
    if len(listed) < len(changes):
        page.paragraph(
            [(f"… {len(changes) - len(listed)} more: --verbose shows them", "dim")], first="  ", hang=2
        )
