"""What is judged: this machine, or the ranks of a recording, as sources of raw answers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_doctor.cli.judging import RankSource, Unreadable
from fsdp_doctor.facts.recorded import RecordedSource, RecordingError, open_recording
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.subjects.storage import Storage
from fsdp_doctor.tables.endpoints import split_endpoint

if TYPE_CHECKING:
    from fsdp_doctor.facts.live import LiveSource

NVML_FACTS: frozenset[type[object]] = frozenset((Driver, Gpus))
STACK_FACTS: frozenset[type[object]] = frozenset((Driver, Stack, Torch))
PROBE_FACTS: tuple[type[object], ...] = (Driver, Gpus, Rdma, Torch)
"""What a probe of this machine is planned by."""
SYSTEM_FACTS: frozenset[type[object]] = frozenset((Host, KernelLog, Network, Storage))
SYSTEMS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows"}


@dataclass(frozen=True, slots=True)
class Subjects:
    """Sources in rank order, the ranks that they should be, and words for what they are."""

    sources: Iterable[RankSource | Unreadable]
    expected: tuple[int, ...]
    kind: str
    path: str | None = None
    checkpoint: str | None = None
    notes: tuple[str, ...] = ()


def recording(path: Path) -> Subjects:
    """The ranks of a recording. Raises `click.UsageError` where there is none."""
    first = _opened(path)
    further = first.ranks()
    own = first.manifest.rank
    expected = (0 if own is None else own, *further)
    return Subjects(_ranks(first, expected), expected, "recording", str(path), first.manifest.checkpoint_dir)


def recordings(paths: Sequence[Path]) -> Subjects:
    """Several machines' recordings as the ranks of one job. Raises `click.UsageError`."""
    opened = [_opened(p) for p in paths]
    for path, source in zip(paths, opened, strict=True):
        if source.ranks():
            raise click.UsageError(f"--from {path}: it holds a whole job already; judge it alone")
    own = [s.manifest.rank for s in opened]
    known = [r for r in own if r is not None]
    told = len(known) == len(own) == len({*known})
    numbers = known if told else list(range(len(opened)))
    world = max([len(opened), max(numbers) + 1, *(s.manifest.world_size or 0 for s in opened)])
    notes = (
        "the recordings are judged as one job"
        + ("" if told else ": ranks 0 and on are the recordings in the order of --from"),
    )
    ranked = sorted(zip(numbers, opened, strict=True), key=lambda pair: pair[0])
    sources = tuple(RankSource(s.placed(n, world), n) for n, s in ranked)
    checkpoint = next((s.manifest.checkpoint_dir for _, s in ranked if s.manifest.checkpoint_dir), None)
    named = ", ".join(str(p) for p in paths)
    return Subjects(sources, tuple(n for n, _ in ranked), "recording", named, checkpoint, notes)


def _opened(path: Path) -> RecordedSource:
    try:
        return open_recording(path)
    except RecordingError as error:
        raise click.UsageError(f"--from {path}: {error}") from None
    except OSError as error:
        raise click.UsageError(f"--from {path}: {error.strerror or error}") from None


def _ranks(first: RecordedSource, numbers: tuple[int, ...]) -> Iterator[RankSource | Unreadable]:
    yield RankSource(first, numbers[0])
    for number in numbers[1:]:
        try:
            yield RankSource(first.rank(number), number)
        except RecordingError as error:
            yield Unreadable(number, str(error))


def this_machine(source: LiveSource) -> Subjects:
    """The machine that this runs on."""
    system = SYSTEMS.get(sys.platform)
    notes: tuple[str, ...] = ()
    if system is not None:
        notes = (
            f"This is {system}: the kernel's files (/proc, /sys), its log, InfiniBand, control groups and "
            "NVIDIA's NVML cannot be seen from here, and checks that need them are skipped. A Linux machine "
            "can be judged here from a recording: check --from RECORDING.",
        )
    return Subjects((RankSource(source),), (), "live", notes=notes)


def ask_machine(
    kinds: Collection[type[object]],
    seconds: float,
    python: str | None = None,
    checkpoint: str | None = None,
    launch: Launch | None = None,
) -> LiveSource:
    """Ask this machine for what `kinds` need only; it gets so many seconds to answer. Close it when done."""
    from fsdp_doctor.facts.live import NVML, STACK, SYSTEM, LiveSource

    asks = {NVML: NVML_FACTS, STACK: STACK_FACTS, SYSTEM: SYSTEM_FACTS}
    return LiveSource(
        python=python,
        seconds=seconds,
        checkpoint=checkpoint,
        names=_names(launch),
        ask=[part for part, facts in asks.items() if facts.intersection(kinds)],
    )


def _names(launch: Launch | None) -> tuple[str, ...]:
    """Hosts that the launch command names, for the resolver."""
    if launch is None:
        return ()
    named = (
        launch.master_addr,
        split_endpoint(launch.rdzv_endpoint or "")[0],
        launch.environment.get("MASTER_ADDR"),
    )
    return tuple(n.strip("[]") for n in named if n)


def interpreter(name: str) -> str:
    """The path of the interpreter that `--python` names. Raises `click.UsageError` where there is none."""
    found = shutil.which(name)
    if found is not None:
        return os.path.abspath(found)
    path = Path(name)
    if path.is_dir():
        raise click.UsageError(
            f"--python {name}: is a folder; name the interpreter in it, such as bin/python"
        )
    if path.exists():
        raise click.UsageError(f"--python {name}: is not executable")
    raise click.UsageError(f"--python {name}: no such file, and no program of that name in PATH")
