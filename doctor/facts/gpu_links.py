"""NVLink and NVLink fabric of one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.nvml_answers import Answers, Args, error_of, integer
from fsdp_doctor.facts.source import Json
from fsdp_doctor.subjects.gpu import Fabric, NvLink

LINK_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")
NO_SUCH_LINK = ("InvalidArgument", "NotSupported")
LINK_SPEED_FIELD, LINK_COUNT_FIELD = 90, 91


def nvlinks(a: Answers) -> tuple[NvLink, ...] | None:
    """Links that exist: an index beyond the GPU's answers InvalidArgument or, on some, NotSupported."""
    if a.field(LINK_COUNT_FIELD) == 0:
        return ()
    states = a.by_args("nvmlDeviceGetNvLinkState")
    if not states:
        return None
    names = {args: error_of(v) for args, v in states.items() if len(args) == 1}
    if names and set(names.values()) == {"NotSupported"}:
        return None
    remote = a.integers_by_args("nvmlDeviceGetNvLinkRemoteDeviceType", 1)
    counters = a.integers_by_args("nvmlDeviceGetNvLinkErrorCounter", 2)
    return tuple(
        _link(args, states[args], remote, counters)
        for args in sorted(names)
        if names[args] not in NO_SUCH_LINK
    )


def _link(args: Args, state: Json, remote: Mapping[Args, int], counters: Mapping[Args, int]) -> NvLink:
    active = None if error_of(state) is not None else integer(state)
    return NvLink(
        args[0],
        None if active is None else active != 0,
        remote.get(args),
        {name: counters[args[0], c] for c, name in enumerate(LINK_COUNTERS) if (args[0], c) in counters},
    )


def fabric(a: Answers) -> Fabric | None:
    """The state of the NVLink fabric; None where the GPU has none or would not say."""
    info = a.struct("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")
    state = integer(info.get("state")) if info else None
    if info is None or state is None:
        return None
    return Fabric(
        state,
        integer(info.get("status")) or 0,
        integer(info.get("cliqueId")),
        _cluster(info.get("clusterUuid")),
        integer(info.get("healthMask")) or 0,
        integer(info.get("healthSummary")),
    )


def _cluster(value: Json) -> str | None:
    """A UUID as text, from text or from its 16 bytes."""
    if isinstance(value, str):
        return value if len(value) in (32, 36) else None
    if isinstance(value, Sequence) and len(value) == 16:
        numbers = [integer(v) for v in value]
        if all(n is not None and 0 <= n < 256 for n in numbers):
            raw = "".join(f"{n:02x}" for n in numbers)
            return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return None
