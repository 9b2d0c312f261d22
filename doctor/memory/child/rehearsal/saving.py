"""Checkpoints: nothing is saved, and what is loaded gives shapes; both are noted with paths and sizes."""

from __future__ import annotations

import io
import os
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from ..storages import tensors
from .devices import GPU, real, translated
from .notes import Notes
from .steps import Steps

SMALL = 64 << 20
"""Bytes up to which what holds no fake tensor is really saved, in the rehearsal's folder."""


def size_of(tree: Any) -> int:
    """Bytes of the tensors in a state dictionary; tied ones are saved once."""
    seen: set[tuple[int, int, int]] = set()
    total = 0
    for tensor in tensors(tree):
        for local in _local(tensor):
            part = local.untyped_storage()._cdata, local.storage_offset(), local.numel()
            if part not in seen:
                seen.add(part)
                total += local.numel() * local.element_size()
    return total


def _local(tensor: Any) -> list[Any]:
    """What this rank holds of a tensor: of a DTensor, of a ShardedTensor, or all."""
    if hasattr(tensor, "local_shards"):
        return [s.tensor for s in tensor.local_shards()]
    return [getattr(tensor, "_local_tensor", tensor)]


def install(notes: Notes, steps: Steps, faking: bool) -> None:
    """Replace torch.save, torch.load and torch.distributed.checkpoint's calls."""
    module: Any = torch
    real_save = torch.save

    def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        path, size = _path(f), size_of(obj)
        notes.unwritten(path, "torch.save", size)
        held = isinstance(f, (str, os.PathLike))
        if size <= SMALL and not any(isinstance(t, (FakeTensor, DTensor)) for t in tensors(obj)):
            whole = io.BytesIO()
            with suppress(Exception):  # objects that hold fake tensors cannot be pickled
                real_save(obj, whole)
            if held:
                with open(f, "wb") as file:  # in the rehearsal's folder
                    file.write(whole.getvalue())
            else:
                f.write(whole.getvalue())
        elif held:
            with open(f, "wb"):  # for whoever looks whether it is there
                pass

    module.save = save
    _loading(notes, faking)
    _distributed(notes, steps)


def _path(f: Any) -> str:
    if isinstance(f, (str, os.PathLike)):
        return os.path.abspath(os.fspath(f))
    return str(getattr(f, "name", "") or f"a {type(f).__name__}")


def _loading(notes: Notes, faking: bool) -> None:
    module: Any = torch
    load = torch.load

    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)) and os.path.exists(f) and not os.path.getsize(f):
            raise OSError(f"{os.fspath(f)} was saved in this rehearsal, which keeps no checkpoint's content")
        if not faking:
            return load(f, map_location, *args, **kwargs)
        target = translated(map_location) if isinstance(map_location, (str, torch.device)) else None
        if isinstance(f, (str, os.PathLike)):
            kwargs.setdefault("mmap", True)  # most values are never looked at
        try:
            found = load(f, "cpu" if map_location is not None else None, *args, **kwargs)
        except (RuntimeError, ValueError):
            kwargs.pop("mmap", None)
            found = load(f, "cpu", *args, **kwargs)
        return _on_gpu(found) if target == GPU else found

    module.load = loaded


def _on_gpu(tree: Any) -> Any:
    """The tree with its tensors on the GPU, as map_location puts them there."""
    if isinstance(tree, torch.Tensor):
        return tree.to(GPU) if real(tree) or isinstance(tree, FakeTensor) else tree
    if isinstance(tree, dict):
        return type(tree)((k, _on_gpu(v)) for k, v in tree.items())
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(_on_gpu(v) for v in tree)
    return tree


def _distributed(notes: Notes, steps: Steps) -> None:
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.state_dict as state_dict
    import torch.distributed.checkpoint.state_dict_loader as loader
    import torch.distributed.checkpoint.state_dict_saver as saver

    package: Any = dcp

    def where(args: Any, kwargs: Any) -> str:
        for key in ("checkpoint_id", "storage_writer", "storage_reader"):
            value = kwargs.get(key)
            if value is not None:
                return str(getattr(value, "path", value))
        return ""

    def content(state: Any) -> Any:
        return {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in dict(state).items()}

    def saving(name: str, result: Any) -> Any:
        def save(state: Any = None, *args: Any, **kwargs: Any) -> Any:
            state = kwargs.pop("state_dict", state)
            notes.unwritten(where(args, kwargs), f"dcp.{name} (this rank's part)", size_of(content(state)))
            return result()

        return save

    def over() -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load(state: Any = None, *args: Any, **kwargs: Any) -> None:
        state = kwargs.pop("state_dict", state)
        path = where(args, kwargs)
        if path and "://" not in path and not os.path.exists(path):
            raise FileNotFoundError(2, "no checkpoint there", path)
        notes.add("handled", f"dcp.load of {path}: values stay as they are, its shapes are not compared")
        for value in dict(state).values():
            if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
                value.load_state_dict(value.state_dict())

    for owner in (package, saver):
        owner.save = saving("save", lambda: None)
        owner.async_save = saving("async_save", over)
        if hasattr(owner, "save_state_dict"):
            owner.save_state_dict = saving("save_state_dict", lambda: None)
    for owner in (package, loader):
        owner.load = load
        if hasattr(owner, "load_state_dict"):
            owner.load_state_dict = load
    # Optimizer states that are not there yet are made by a step with gradients of 0.
    module: Any = state_dict
    if hasattr(module, "_init_optim_state"):
        begin = module._init_optim_state

        def init(*args: Any, **kwargs: Any) -> Any:
            steps.paused += 1
            try:
                return begin(*args, **kwargs)
            finally:
                steps.paused -= 1

        module._init_optim_state = init
