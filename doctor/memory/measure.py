"""Runs a job on the GPU at hand and sets what its allocator counted beside the prediction."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from fsdp_doctor.memory.compare import differences, measured_phases, moments, peak
from fsdp_doctor.memory.events import EventList
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import Replay, ReplayError, in_child
from fsdp_doctor.memory.simulate import simulate
from fsdp_doctor.subjects.memory_measured import DeviceUse, GpuAtHand, MeasuredOom, MemoryMeasurement

ERROR = 0.01
"""Part of the measured peak by which a prediction may be off before its causes are looked for."""
LEFT_OUT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
CUDA: Mapping[str, object] = {"meter": "cuda"}


class NoGpu(RuntimeError):
    """There is no GPU to measure on; the message says why."""


def at_hand(python: str = sys.executable, deadline: float | None = None) -> GpuAtHand:
    """The first visible GPU. Raises `NoGpu` and `ReplayError`."""
    result, _ = in_child({"work": "look"}, python, deadline, environment())
    said = result.get("look")
    look = said if isinstance(said, Mapping) else {}
    why = look.get("why")
    if why or not look.get("gpu"):
        raise NoGpu(f"{why or 'torch sees no GPU'} ({python})")
    return GpuAtHand(
        str(look["gpu"]),
        _int(look, "sm"),
        _int(look, "total_bytes"),
        _int(look, "free_bytes"),
        str(look.get("torch")),
        _text(look, "cuda"),
        _maybe(look, "cudnn"),
    )


def measure(
    job: Job,
    predicted: Replay,
    *,
    python: str = sys.executable,
    deadline: float | None = None,
    meter: Mapping[str, object] = CUDA,
) -> MemoryMeasurement:
    """Run the job that was predicted on real tensors. Raises `ReplayError`.

    Being out of memory is an answer. A process that ends during the traced step leaves what came before it.
    """
    described = {**job.to_json(), "work": "measure", "measure": dict(meter)}
    traced: EventList | None = None
    try:
        result, traced = in_child(described, python, deadline, environment())
    except ReplayError as error:
        if error.measured is None:
            raise
        result = {**error.measured, "lost": str(error)}
    said = result.get("measured")
    if not isinstance(said, Mapping):
        raise ReplayError("child", "the child that measured left no figures")
    try:
        return _measurement(said, predicted, traced, str(result.get("lost", "")))
    except (ValueError, KeyError) as error:
        raise ReplayError("child", f"the measurement cannot be read: {error}") from None


def environment() -> dict[str, str]:
    """The user's own, GPUs and allocator settings included, without a launcher's ranks."""
    return {k: v for k, v in os.environ.items() if k not in LEFT_OUT}


def _measurement(
    said: Mapping[str, object], predicted: Replay, traced: EventList | None, lost: str
) -> MemoryMeasurement:
    run = simulate(predicted.events)
    phases = measured_phases(said.get("phases"))
    about = said.get("about")
    known = about if isinstance(about, Mapping) else {}
    out = said.get("oom")
    oom = (
        MeasuredOom(str(out.get("phase")), str(out.get("stage")), str(out.get("text")))
        if isinstance(out, Mapping)
        else None
    )
    expected, seen = peak(run.phases), peak(phases)
    untraced = lost or str(said.get("trace") or "") or ("" if oom is None else "memory ran out before it")
    traced = None if untraced else traced
    off = oom is None and seen > 0 and abs(expected / seen - 1) > ERROR
    return MemoryMeasurement(
        torch=str(known.get("torch")),
        cuda=_text(known, "cuda"),
        cudnn=_maybe(known, "cudnn"),
        device=_device(known),
        moments=moments(run, phases),
        predicted=expected,
        measured=seen,
        reserved=max((p.reserved for p in phases), default=0),
        oom=oom,
        differences=differences(predicted.events, traced)
        if off and traced is not None and not untraced
        else (),
        untraced=untraced,
    )


def _device(about: Mapping[str, object]) -> DeviceUse:
    return DeviceUse(
        gpu=str(about.get("gpu", "")),
        sm=_maybe(about, "sm") or 0,
        total=_maybe(about, "total_bytes") or 0,
        base=_maybe(about, "base_bytes") or 0,
        context=_maybe(about, "context_bytes") or 0,
        outside=_maybe(about, "outside_bytes") or 0,
        reserved=_maybe(about, "reserved_now_bytes") or 0,
        nvml_before=_maybe(about, "nvml_before_bytes"),
        nvml_after=_maybe(about, "nvml_after_bytes"),
    )


def _int(said: Mapping[str, object], key: str) -> int:
    value = said.get(key)
    if not isinstance(value, int):
        raise ReplayError("child", f"the GPU's {key} is unknown")
    return value


def _maybe(said: Mapping[str, object], key: str) -> int | None:
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(said: Mapping[str, object], key: str) -> str | None:
    value = said.get(key)
    return value if isinstance(value, str) else None
