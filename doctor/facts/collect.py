"""From raw answers to `Facts`: one provider per subject type, run only where a check wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

from fsdp_doctor.facts.source import Source
from fsdp_doctor.subjects.checkpoint_cost import CostPlan
from fsdp_doctor.subjects.checkpoint_run import RunFolder
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Facts, Known, Unknown
from fsdp_doctor.subjects.flight import FlightVerdict
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.incident import Incident
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.loading import Loading
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.subjects.probe import ProbeResult
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.rehearsal import Rehearsal
from fsdp_doctor.subjects.scheduler import Identity, Scheduler
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.subjects.stacks import LiveJob
from fsdp_doctor.subjects.step import StepForecast
from fsdp_doctor.subjects.storage import Storage
from fsdp_doctor.subjects.unit_plan import UnitPlan

Fact = Known[object] | Unknown

PROVIDERS: Mapping[type[object], tuple[str, str]] = {
    Host: ("host", "host"),
    Pci: ("pci", "pci"),
    Network: ("network", "network"),
    Rdma: ("rdma", "rdma"),
    Storage: ("storage", "storage"),
    KernelLog: ("kernel_log", "kernel_log"),
    Scheduler: ("scheduler", "scheduler"),
    Environment: ("environment", "environment"),
    Driver: ("gpu", "driver"),
    Gpus: ("gpu", "gpus"),
    Stack: ("stack", "stack"),
    Torch: ("stack", "torch"),
}
"""Subject type -> module of this package and function; a module is imported when it is first wanted."""

MEASURED: Mapping[type[object], tuple[str, str]] = {
    MemoryAnswer: ("no model was given", "run `fsdp-doctor dryrun`"),
    UnitPlan: ("no model was given", "run `fsdp-doctor dryrun`"),
    MemoryMeasurement: ("nothing was measured", "run `fsdp-doctor dryrun … --on-gpu`"),
    Rehearsal: ("no script was rehearsed", "run `fsdp-doctor rehearse -- COMMAND`"),
    ProbeResult: ("no probe was run", "run `fsdp-doctor probe`"),
    Fabric: ("no probe was run", "run `fsdp-doctor probe`"),
    StepForecast: ("no step was forecast: no job was described", "give --units and --tokens"),
    Incident: ("no logs were given", "run `fsdp-doctor diagnose`"),
    Diagnosis: ("no logs were given", "run `fsdp-doctor diagnose`"),
    FlightVerdict: ("no Flight Recorder dumps were given", "run `fsdp-doctor diagnose DUMPS`"),
    LiveJob: ("no running job was looked at", "run `fsdp-doctor diagnose --live`"),
    Loading: ("no checkpoint was given", "give --ckpt DIR, or run `fsdp-doctor ckpt check`"),
    CostPlan: ("no model was given whose saving could be sized", "run `fsdp-doctor ckpt estimate`"),
    RunFolder: ("no run's folder was given", "run `fsdp-doctor ckpt latest RUN_DIR`"),
}
"""Subject types that commands make and no source holds -> why one is missing, and what would bring it."""

KINDS: tuple[type[object], ...] = (*PROVIDERS, Identity, Launch)
"""Every type that `collect` knows."""


def collect(
    source: Source,
    kinds: Iterable[type[object]],
    *,
    checkpoint: str | None = None,
    launch: Launch | None = None,
) -> Facts:
    """The facts of `kinds`. A provider that raises leaves an unknown fact; the others are not touched.

    `checkpoint` is a path on the judged machine; a recording names its own where none is given.
    """
    path = checkpoint if checkpoint is not None else source.manifest.checkpoint_dir
    return Facts({k: _fact(source, k, path, launch) for k in dict.fromkeys(kinds)})


def _fact(source: Source, kind: type[object], checkpoint: str | None, launch: Launch | None) -> Fact:
    if kind is Launch:
        return Unknown("no launch command was given", absent=True) if launch is None else Known(launch)
    if kind is Identity:
        return _guarded("identity", kind, lambda: Known(_identity(source)))
    if kind in MEASURED:
        reason, enable = MEASURED[kind]
        return Unknown(reason, enable, absent=True)
    if kind not in PROVIDERS:
        return Unknown(f"nothing provides {kind.__name__}")
    provider = _provider(kind)
    if kind is Storage:
        return _guarded("storage", kind, lambda: provider(source, checkpoint))
    return _guarded(PROVIDERS[kind][1], kind, lambda: provider(source))


def _provider(kind: type[object]) -> Callable[..., Fact]:
    module, function = PROVIDERS[kind]
    found: Callable[..., Fact] = getattr(import_module(f"fsdp_doctor.facts.{module}"), function)
    return found


def _guarded(name: str, kind: type[object], ask: Callable[[], Fact]) -> Fact:
    try:
        fact = ask()
    except Exception as error:  # an answer that no provider foresaw must not end the others
        return Unknown(f"provider {name} failed: {type(error).__name__}: {error}")
    if isinstance(fact, Unknown) or (isinstance(fact, Known) and isinstance(fact.value, kind)):
        return fact
    return Unknown(f"provider {name} failed: it answered a {type(fact).__name__}")


def _identity(source: Source) -> Identity:
    manifest = source.manifest
    rank, world_size = manifest.rank, manifest.world_size
    if not manifest.recorded and rank is None:
        fact = _provider(Scheduler)(source)
        scheduler = fact.value if isinstance(fact, Known) else None
        if isinstance(scheduler, Scheduler):
            rank, world_size = scheduler.rank, world_size or scheduler.world_size
    return Identity(
        host=manifest.host,
        rank=rank,
        world_size=world_size,
        created=manifest.created,
        clock_offset_seconds=manifest.clock_offset_seconds,
        recorded=manifest.recorded,
    )
