"""The unit plan of a replay's answer, as a subject."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.memory.job import Job
from fsdp_doctor.subjects.unit_plan import Buffer, Inner, Parameter, Repeated, Unit, UnitPlan


def unit_plan(about: Mapping[str, object], job: Job, capacity: int | None) -> UnitPlan:
    """What the child read off the model; fields that are not as expected raise `ValueError`."""
    return UnitPlan(
        api=job.api,
        strategy=job.strategy,
        world_size=job.world_size,
        shard_size=job.shard_group,
        param_dtype=job.param_dtype,
        reduce_dtype=job.reduce_dtype,
        wrap=job.wrap,
        units=tuple(_unit(u) for u in _objects(about, "units")),
        parameters=tuple(_parameter(p) for p in _objects(about, "parameters")),
        buffers=tuple(Buffer(str(n), _shape(s), _int(b)) for n, s, b in _rows(about, "buffers")),
        repeated=tuple(Repeated(str(k), _int(c), _int(e)) for k, c, e in _rows(about, "repeated")),
        capacity=capacity,
        torch=_text(about, "torch"),
        missing=_texts(about, "missing"),
        unknown=tuple((str(v[0]), str(v[1])) for v in _pairs(about, "unknown")),
        near=tuple((str(v[0]), tuple(map(str, _list(v[1])))) for v in _pairs(about, "near")),
        suggested=_texts(about, "suggested"),
        left=_inner(about, "left"),
        checkpointed=_texts(about, "checkpointed"),
        sharded=_texts(about, "sharded"),
        optimizers=_texts(about, "optimizers"),
        recurrent=_texts(about, "recurrent"),
        order=_order(about.get("order"), len(_objects(about, "units"))),
        unordered=_text(about, "unordered"),
        use_orig_params=job.use_orig_params,
        optimizer=job.optimizer,
        clip=job.clip,
    )


def _unit(value: Mapping[str, object]) -> Unit:
    parent = value.get("parent")
    return Unit(
        _text(value, "name"),
        _text(value, "kind"),
        parent if isinstance(parent, int) else None,
        value.get("container") is True,
        _inner(value, "inner"),
        _inner(value, "deeper"),
    )


def _inner(value: Mapping[str, object], key: str) -> tuple[Inner, ...]:
    return tuple(Inner(str(k), _int(c), _int(e)) for k, c, e in _rows(value, key))


def _order(value: object, units: int) -> tuple[int, ...] | None:
    return tuple(i for i in map(_int, value) if 0 <= i < units) if isinstance(value, list) else None


def _parameter(value: Mapping[str, object]) -> Parameter:
    names, units = value.get("other_names"), value.get("other_units")
    return Parameter(
        name=_text(value, "name"),
        shape=_shape(value.get("shape")),
        dtype=_text(value, "dtype"),
        item_bytes=_int(value.get("item_bytes")),
        trainable=value.get("trainable") is True,
        unit=_int(value.get("unit")),
        other_names=tuple(str(n) for n in names) if isinstance(names, list) else (),
        other_units=tuple(_int(u) for u in units) if isinstance(units, list) else (),
        device=_text(value, "device") or "meta",
        kind=_text(value, "kind") or "Parameter",
        contiguous=value.get("contiguous") is not False,
        ignored=value.get("ignored") is True,
    )


def _objects(about: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    return [v for v in _list(about.get(key)) if isinstance(v, Mapping)]


def _rows(about: Mapping[str, object], key: str) -> list[tuple[object, object, object]]:
    return [(v[0], v[1], v[2]) for v in _list(about.get(key)) if isinstance(v, list) and len(v) == 3]


def _pairs(about: Mapping[str, object], key: str) -> list[list[object]]:
    return [v for v in _list(about.get(key)) if isinstance(v, list) and len(v) == 2]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _shape(value: object) -> tuple[int, ...]:
    return tuple(_int(v) for v in _list(value))


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no integer")
    return value


def _texts(value: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(str(v) for v in _list(value.get(key)))


def _text(value: Mapping[str, object], key: str) -> str:
    return str(value.get(key, ""))
