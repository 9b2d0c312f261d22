"""Which storages live, in whose block, on which stream.

A storage lives until its last tensor goes, or is resized to nothing, as FSDP does with its buffers. What
another stream uses is noted as torch does it: by `record_stream`, and by the autograd engine where a node on
one stream hands a gradient to a node on another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from . import backward_streams
from .events import USED, WAITED, Events
from .where import Labelled, Where


class Entry:
    """One living storage."""

    __slots__ = ("block", "host", "ref", "size")

    def __init__(self, ref: weakref.ref[Any], size: int, block: int, host: bool) -> None:
        self.ref, self.size, self.block, self.host = ref, size, block, host


class Storages(Labelled):
    """One process's account. `host` makes new tensors host tensors while it is set, `pinned` pinned ones."""

    def __init__(self, events: Events) -> None:
        self.events, self.where = events, Where(events)
        self.live: dict[int, Entry] = {}
        self.refs: dict[int, int] = {}
        self.paused = 0
        self.host = self.pinned = False
        self.any_host = False
        self._streams: dict[int, int] = {}
        self._watch_resizing()

    def stream(self) -> int:
        """The number of the current stream; in backward it may be the one of the node that runs."""
        return self._number(torch.cpu._current_stream)

    def _number(self, stream: Any) -> int:
        if stream is torch.cpu._default_cpu_stream:
            stream = backward_streams.running() or stream
        found = self._streams.get(id(stream))
        if found is None:
            found = self._streams[id(stream)] = self.events.streams.number(f"stream {len(self._streams)}")
        return found

    def watch(
        self,
        storage: Any,
        operator: str,
        share: int | None = None,
        host: bool = False,
        larger: int | None = None,
    ) -> None:
        """Note a storage unless it is known.

        `share` is a block that it lives in together with another; `larger` its bytes on a GPU where these are
        more than the tensor's own.
        """
        key = storage._cdata
        if key in self.live:
            return
        size = storage.nbytes()
        if share is not None:
            self.refs[share] += 1
            block = share
        else:
            block = self._new(size if host or larger is None else larger, operator, host)
        if host:
            self.any_host = True

        def gone(_: object, key: int = key) -> None:
            entry = self.live.pop(key, None)
            if entry is not None:
                self._drop(entry.block, entry.host)

        self.live[key] = Entry(weakref.ref(storage, gone), size, block, host)

    def _new(self, size: int, operator: str, host: bool = False) -> int:
        if not size:
            return -1
        stream = int(self.pinned) if host else self.stream()
        block = self.events.allocate(size, stream, self.label or operator, self.where.now(), host)
        self.refs[block] = 1
        return block

    def _drop(self, block: int, host: bool = False) -> None:
        if block < 0:
            return
        self.refs[block] -= 1
        if not self.refs[block]:
            del self.refs[block]
            self.events.free(block, host)

    def keep(self, size: int, operator: str) -> None:
        """A block that is never given back, as a library's workspace."""
        self._new(size, operator)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lives in host memory."""
        entry = self.live.get(tensor.untyped_storage()._cdata)
        return entry is not None and entry.host

    def to_host(self, tensor: torch.Tensor) -> None:
        """Take a tensor's memory from the GPU's account to the host's."""
        storage = tensor.untyped_storage()
        entry = self.live.get(storage._cdata)
        if entry is not None and not entry.host:
            self._drop(entry.block)
            entry.block, entry.host, self.any_host = self._new(entry.size, "host", True), True, True

    def to_device(self, tensor: torch.Tensor) -> None:
        """The other way: memory that lies on the GPU after all."""
        entry = self.live.get(tensor.untyped_storage()._cdata)
        if entry is not None and entry.host:
            self._drop(entry.block, True)
            entry.block, entry.host = self._new(entry.size, "aten::lift_fresh"), False

    def used_by(self, tensor: torch.Tensor, stream: object) -> None:
        """record_stream: another stream has work on a tensor."""
        entry = self.live.get(tensor.untyped_storage()._cdata)
        if entry is not None and entry.block >= 0 and not entry.host:
            self.events.row(USED, entry.block, 0, self._number(stream), 0, 0)

    def _handed_over(self, args: Any) -> None:
        """The engine records on a node's stream what the node was handed by one on another stream."""
        stream = backward_streams.running()
        if stream is not None and torch.cpu._current_stream is torch.cpu._default_cpu_stream:
            for tensor in tensors(args):
                self.used_by(tensor, stream)

    def waited(self, upto: int, stream: int = -1) -> None:
        """The host waited for an event recorded on a stream, or on all, when there were `upto` rows."""
        self.events.row(WAITED, -1, upto, stream, 0, 0)

    def number_of(self, stream: object) -> int:
        """The number of a stream; None is the current one."""
        return self._number(torch.cpu._current_stream if stream is None else stream)

    def _watch_resizing(self) -> None:
        real = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            result = real(storage, size)
            if not self.paused:
                self.resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_

    def resized(self, storage: Any) -> None:
        """FSDP frees and allocates its buffers by resizing storages."""
        entry = self.live.get(storage._cdata)
        if entry is None:
            self.watch(storage, "resize_")
            return
        size = storage.nbytes()
        if size != entry.size:
            self._drop(entry.block, entry.host)
            entry.size, entry.block = size, self._new(size, "resize_", entry.host)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from tensors(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from tensors(part)
