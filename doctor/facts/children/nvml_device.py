"""One GPU, asked in a thread of its own: one that hangs does not keep the others from answering."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fsdp_doctor.facts.children.nvml_calls import Call, Kept, Nvml, attempt, error_name, failed, key, plain
from fsdp_doctor.facts.children.nvml_questions import (
    FABRIC,
    FIELD_VALUES,
    FIELDS,
    HANDLE,
    LINK_COUNTERS,
    MAX_LINKS,
    MAX_MIG,
    P2P_INDICES,
    PLAIN,
    VERSIONS,
    WITH_ARGUMENTS,
)
from fsdp_doctor.facts.source import Json

Report = Callable[..., None]
Question = tuple[str, Call]
PEER_SECONDS = 1.5
"""How long a GPU waits for the handles of the others before it leaves those pairs out."""


class Device(threading.Thread):
    """`report(index, function)` is called before each NVML function and with its answer after it."""

    def __init__(self, nvml: Nvml, report: Report, index: int, peers: dict[int, Device]) -> None:
        super().__init__(daemon=True)
        self.nvml, self.report, self.index, self.peers = nvml, report, index, peers
        self.handle: object = None
        self.handle_known = threading.Event()
        self.asking = HANDLE
        self.until: float | None = None

    def run(self) -> None:
        """Ask everything about this GPU, what is quick and certain first."""
        self.report(self.index, HANDLE)
        try:
            self.handle = self.nvml.call(HANDLE, self.index)
        except Exception as error:  # its name is the answer
            self.report(self.index, HANDLE, {"error": error_name(error)})
            return
        finally:
            self.handle_known.set()
        self.report(self.index, HANDLE, True)
        for function, call in self._questions():
            self.asking = function
            self.report(self.index, function)
            self.report(self.index, function, attempt(call))

    def _questions(self) -> Iterator[Question]:
        nvml, handle = self.nvml, self.handle
        for function in PLAIN:
            yield function, partial(nvml.call, function, handle)
        yield "nvmlDeviceGetMemoryInfo_v2", self._memory_v2
        yield "nvmlDeviceGetTemperatureV", self._temperature
        yield "nvmlDeviceGetGspFirmwareMode", self._gsp_mode
        sram = "nvmlDeviceGetSramEccErrorStatus"
        yield sram, partial(nvml.fill, sram, "c_nvmlEccSramErrorStatus_v1_t", handle)
        for versions in VERSIONS:
            yield from _until_answered((f, partial(nvml.call, f, handle)) for f in versions)
        for function, arguments in WITH_ARGUMENTS:
            yield function, partial(nvml.table, function, handle, arguments)
        yield "nvmlDeviceGetFieldValues", self._fields
        yield from _until_answered((f, partial(self._fabric, f, s)) for f, s in FABRIC)
        yield from self._links()
        for function, more in (
            ("nvmlDeviceGetTopologyCommonAncestor", ((),)),
            ("nvmlDeviceGetP2PStatus", tuple((i,) for i in P2P_INDICES)),
        ):
            yield function, partial(self._pairs, function, more)
        yield "nvmlDeviceGetMigDeviceHandleByIndex", self._mig
        # It reads the whole InfoROM and is the slowest of all.
        yield "nvmlDeviceValidateInforom", self._inforom

    def _memory_v2(self) -> object:
        return self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle, self.nvml.module.nvmlMemory_v2)

    def _temperature(self) -> object:
        return {"sensorType": 0, "temperature": self.nvml.call("nvmlDeviceGetTemperatureV", self.handle, 0)}

    def _gsp_mode(self) -> object:
        # In variables of this thread: those that the binding has as defaults are shared by all.
        return self.nvml.call("nvmlDeviceGetGspFirmwareMode", self.handle, ctypes.c_uint(), ctypes.c_uint())

    def _inforom(self) -> object:
        self.nvml.call("nvmlDeviceValidateInforom", self.handle)
        return True

    def _fields(self) -> Json:
        """One entry per field number with its own return code."""
        listed = plain(self.nvml.call("nvmlDeviceGetFieldValues", self.handle, list(FIELDS)))
        found: dict[str, Json] = {}
        for entry in listed if isinstance(listed, list) else ():
            kind, union = entry["valueType"], entry["value"]
            member = FIELD_VALUES[kind] if 0 <= kind < len(FIELD_VALUES) else "ullVal"
            value = union[member] if entry["nvmlReturn"] == 0 else 0
            found[key((entry["fieldId"],))] = {"nvmlReturn": entry["nvmlReturn"], "value": value}
        return {"args": found}

    def _fabric(self, function: str, structure: str) -> Json:
        info = plain(self.nvml.fill(function, structure, self.handle))
        if not isinstance(info, dict):
            return info
        raw = bytes(info["clusterUuid"]).hex()
        cluster = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
        return {**info, "clusterUuid": cluster}

    def _links(self) -> Iterator[Question]:
        """States first, then more about the links that have one."""
        numbers = range(int(getattr(self.nvml.module, "NVML_NVLINK_MAX_LINKS", MAX_LINKS)))
        function = "nvmlDeviceGetNvLinkState"
        states = Kept(partial(self.nvml.table, function, self.handle, [(n,) for n in numbers]))
        yield function, states
        table = states.answer.get("args") if isinstance(states.answer, dict) else None
        answers = table if isinstance(table, dict) else {}
        existing = [n for n in numbers if key((n,)) in answers and failed(answers[key((n,))]) is None]
        if existing:
            for function, more in (
                ("nvmlDeviceGetNvLinkRemoteDeviceType", [(n,) for n in existing]),
                ("nvmlDeviceGetNvLinkErrorCounter", [(n, c) for n in existing for c in LINK_COUNTERS]),
            ):
                yield function, partial(self.nvml.table, function, self.handle, more)

    def _pairs(self, function: str, arguments: tuple[tuple[int, ...], ...]) -> Json:
        """A function of two GPUs, for every other GPU that has a handle."""
        if self.until is None:
            self.until = time.monotonic() + PEER_SECONDS
        found: dict[str, Json] = {}
        for index, peer in self.peers.items():
            known = peer.handle_known.wait(max(0.0, self.until - time.monotonic()))
            if index == self.index or not known or peer.handle is None:
                continue
            for a in arguments:
                found[key((index, *a))] = attempt(
                    partial(self.nvml.call, function, self.handle, peer.handle, *a)
                )
        return {"args": found}

    def _mig(self) -> Json:
        """UUID and name of each MIG instance; none where the mode is off."""
        mode = self.nvml.call("nvmlDeviceGetMigMode", self.handle)
        found: dict[str, Json] = {}
        for number in range(MAX_MIG if isinstance(mode, list) and mode[0] else 0):
            try:
                handle = self.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, number)
            except Exception:  # a slot without an instance
                continue
            names = ("nvmlDeviceGetUUID", "nvmlDeviceGetName")
            found[key((number,))] = {n: attempt(partial(self.nvml.call, n, handle)) for n in names}
        return {"args": found}


def _until_answered(versions: Iterable[Question]) -> Iterator[Question]:
    """Versions of one question, newest first, until one has an answer."""
    for function, call in versions:
        kept = Kept(call)
        yield function, kept
        if failed(kept.answer) is None:
            return
