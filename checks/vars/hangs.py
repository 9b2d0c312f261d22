"""torch's variables about hangs: whether one ends, and whether it leaves a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, says, unset
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, Settings, settings, torch_version
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.stack import Torch
from fsdp_doctor.tables import torch_variables as table

INTEGER = re.compile(r"\s*[+-]?[0-9]{1,9}(?![0-9])")
DEBUG_WORDS = ("OFF", "INFO", "DETAIL")
ASYNC = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DUMP = "TORCH_NCCL_DUMP_ON_TIMEOUT"


def _first(variables: Settings, names: tuple[str, ...]) -> Setting | None:
    """The new name before the old one, as torch resolves them."""
    return next((s for n in names if (s := variables.get(n)) is not None), None)


def _integer(setting: Setting | None) -> int | None:
    match = INTEGER.match(setting.value) if setting is not None else None
    return int(match.group()) if match else None


def _true(setting: Setting | None) -> bool:
    return setting is not None and setting.value.lower() in table.TRUE_WORDS


def _false(setting: Setting | None) -> bool:
    return setting is not None and setting.value.lower() in table.FALSE_WORDS


@check("VAR011", Row.NCCL, needs=(Environment,), uses=(Launch,), tags=("vars", "torch"))
def hang_does_not_end(facts: Facts, options: Options) -> Iterator[Finding]:
    """PyTorch's watchdog is told not to end a hung or failed job

    What: TORCH_NCCL_ASYNC_ERROR_HANDLING=0, TORCH_NCCL_BLOCKING_WAIT=1, TORCH_NCCL_ENABLE_MONITORING=0, or a
        heartbeat of the watchdog that is very short or very long.
    Why: with error handling off, a timed-out collective is not aborted and the job holds its GPUs until
        somebody looks. Blocking wait starts no watchdog: no flight-recorder dump, and each wait stops the
        CPU. A short heartbeat kills jobs that compile or save; a long one lets a stuck watchdog wait on.
    Fix: unset the variables; set the timeout of the process group (init_process_group(timeout=...)) instead.
    Sources: PyTorch documentation of the ProcessGroupNCCL environment variables; ProcessGroupNCCL sources.
    """
    variables = settings(facts)
    blocking, handling = _first(variables, BLOCKING), _first(variables, ASYNC)
    mode = _integer(handling)
    bad = False
    if _true(blocking) and blocking is not None:
        bad = True
        yield warn(
            f"{says(blocking)}: no watchdog runs, and every wait blocks the CPU",
            "unset",
            subject=about(blocking),
            fix=unset(blocking),
        )
    if handling is not None and mode == 0 and not _true(blocking):
        bad = True
        yield warn(
            f"{says(handling)}: a collective that times out or fails is not aborted, the job hangs on",
            "unset, or 3",
            subject=about(handling),
            fix=unset(handling),
        )
    elif handling is not None and mode is not None and not 0 <= mode <= 3:
        bad = True
        yield warn(f"{says(handling)}: no such mode", "0 to 3", subject=about(handling), fix=unset(handling))
    monitor = variables.get("TORCH_NCCL_ENABLE_MONITORING")
    if monitor is not None and _false(monitor):
        bad = True
        yield warn(
            f"{says(monitor)}: a watchdog that is itself stuck in CUDA or NCCL is not noticed",
            "unset",
            subject=about(monitor),
            fix=unset(monitor),
        )
    beat = variables.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    seconds = _integer(beat)
    if (
        beat is not None
        and seconds is not None
        and not table.HEARTBEAT_SHORT <= seconds <= table.HEARTBEAT_LONG
    ):
        bad = True
        effect = (
            "healthy ranks are killed while they compile or save"
            if seconds < table.HEARTBEAT_SHORT
            else "a hang lasts"
        )
        yield warn(
            f"{says(beat)}: {effect}",
            f"{table.HEARTBEAT_SHORT} to {table.HEARTBEAT_LONG} s (default 480)",
            subject=about(beat),
            fix=unset(beat),
        )
    if not bad:
        yield ok("the watchdog ends a hung collective")


@check("VAR012", Row.START, needs=(Environment,), uses=(Launch,), tags=("vars", "torch"))
def torch_refuses_a_value(facts: Facts, options: Options) -> Iterator[Finding]:
    """PyTorch raises at a value of one of its variables

    What: a switch of torch that is not one of 1, 0, true, false, yes, no, t, f, y, n; a number that does not
        begin with digits; or TORCH_DISTRIBUTED_DEBUG other than OFF, INFO or DETAIL.
    Why: torch reads these when the process group is made and raises "Invalid value for environment variable":
        no rank starts.
    Fix: correct the value.
    Sources: torch sources, c10d Utils.hpp (getCvarBool, getCvarInt) and debug.cpp.
    """
    variables = settings(facts)
    bad = False
    checked = [(n, _word) for n in sorted(table.BOOLEANS)] + [(n, _whole) for n in sorted(table.INTEGERS)]
    for name, wrong in (*checked, ("TORCH_DISTRIBUTED_DEBUG", _level)):
        setting = variables.get(name)
        wanted = wrong(setting.value) if setting is not None else None
        if setting is None or wanted is None:
            continue
        bad = True
        yield fail(
            f"{says(setting)}: torch raises at this value",
            wanted,
            subject=about(setting),
            fix=Fix(f"Set {name} to {wanted}, or unset it", f"unset {name}"),
        )
    if not bad:
        yield ok("every value is one that torch takes")


def _word(value: str) -> str | None:
    return None if value.lower() in table.TRUE_WORDS | table.FALSE_WORDS else "0 or 1"


def _whole(value: str) -> str | None:
    return None if INTEGER.match(value) else "a number"


def _level(value: str) -> str | None:
    return None if value.upper() in DEBUG_WORDS else "OFF, INFO or DETAIL"


@check("VAR013", Row.NCCL, needs=(Environment, Gpus), uses=(Launch, Torch), tags=("vars", "torch"))
def hang_leaves_no_trace(facts: Facts, options: Options) -> Iterator[Finding]:
    """A hang would leave no flight-recorder dump

    What: the flight recorder, torch's record of the last collectives of each rank, is off: its buffer is 0
        (the default of older torch) or it is told not to write on a timeout.
    Why: the dump of every rank names the collective and the rank that never entered it; without it a
        timeout only names the ranks that waited.
    Fix: set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 before long runs (both are
        read by every version), and TORCH_NCCL_DEBUG_INFO_TEMP_FILE to a path on a disk that outlives the
        job.
    Sources: PyTorch flight recorder tutorial, torch FlightRecorder.hpp, pytorch#172843.
    """
    variables, version = settings(facts), torch_version(facts)
    size, dump = _first(variables, SIZES), variables.get(DUMP)
    events = _integer(size)
    enable = Fix(
        "Record the collectives and write them on a timeout",
        f"export TORCH_NCCL_TRACE_BUFFER_SIZE={table.FLIGHT_RECORDER_EVENTS} {DUMP}=1",
    )
    if size is not None and events is not None and events <= 0:
        yield warn(
            f"{says(size)}: the flight recorder is off",
            f"{table.FLIGHT_RECORDER_EVENTS}",
            subject=about(size),
            fix=enable,
        )
    elif dump is not None and _false(dump):
        yield warn(f"{says(dump)}: nothing is written on a timeout", "1", subject=about(dump), fix=enable)
    elif size is None and (version is None or version[:2] < table.FLIGHT_RECORDER_DEFAULT_ON):
        have = ".".join(map(str, version)) if version else "unknown"
        yield info(
            f"torch {have}: the flight recorder may be off by default",
            expected="on, for long runs",
            fix=enable,
        )
    elif dump is None and (version is None or version[:2] < table.FLIGHT_RECORDER_DEFAULT_ON):
        yield info(f"{DUMP} is not set: older torch then writes nothing on a timeout", fix=enable)
    else:
        kept = events if events is not None else table.FLIGHT_RECORDER_EVENTS
        yield ok(f"the flight recorder keeps {kept} events")
