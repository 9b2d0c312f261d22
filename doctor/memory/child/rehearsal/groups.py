"""Rank 0 of N without the others: process groups, meshes, object collectives, spawned ranks."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from .. import values
from .notes import Notes, by_torch

GROUPS_COUNTED = ("new_group", "split_group")
MOVES = os.path.join("distributed", "tensor", "_api.py")
MOST = 1 << 16
"""Elements of a tensor of counts."""


class Ranks:
    """The fake job. `made` counts communicators with more than one rank, the default one included."""

    def __init__(self, world: int, local: int, notes: Notes, on_host: bool) -> None:
        self.world, self.local, self.notes, self.on_host = world, local, notes, on_host
        self.asked_backend = ""
        self.made = 0
        self._init = c10d.init_process_group

    def install(self) -> None:
        """Replace what speaks to other ranks. Holds for the whole process."""
        self._everywhere("init_process_group", self._start)
        self._everywhere("get_backend", self._backend(c10d.get_backend))
        for name in ("barrier", "monitored_barrier", "_set_pg_timeout"):
            self._everywhere(name, lambda *_, **__: None)
        import torch.distributed.device_mesh as meshes

        for name in GROUPS_COUNTED:
            if hasattr(c10d, name):
                counted = self._group(getattr(c10d, name), name)
                self._everywhere(name, counted)
                if hasattr(meshes, name):
                    setattr(meshes, name, counted)
        self._everywhere("all_gather_object", self._all_gather_object)
        self._everywhere("gather_object", self._gather_object)
        self._everywhere("broadcast_object_list", self._keeps("broadcast_object_list"))
        self._everywhere("scatter_object_list", self._scatter_object_list)
        for name in ("send_object_list", "recv_object_list"):
            if hasattr(c10d, name):
                self._everywhere(name, self._keeps(name))
        self._everywhere("all_reduce", self._all_reduce(c10d.all_reduce))
        self._everywhere("all_gather", self._all_gather(c10d.all_gather))
        for name in ("is_nccl_available", "is_torchelastic_launched"):
            self._everywhere(name, lambda: True)
        self._stores()
        self._spawn()
        if self.on_host:
            self._meshes()

    def _everywhere(self, name: str, function: Any) -> None:
        setattr(c10d, name, function)
        setattr(dist, name, function)

    # ------------------------------------------------------------------------------------ groups
    def _start(self, backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():
            raise ValueError("trying to initialize the default process group twice!")
        self.asked_backend = str(backend or "nccl").split(":")[-1]
        said = kwargs.get("world_size")
        if isinstance(said, int) and said not in (-1, self.world):
            self.notes.add("handled", f"init_process_group(world_size={said}): {self.world} ranks as asked")
        self._init("fake", store=FakeStore(), rank=0, world_size=self.world)
        if self.world > 1:
            self.made += 1

    def _backend(self, real: Any) -> Any:
        def get_backend(group: Any = None) -> Any:
            found = real(group)
            return self.asked_backend if found == "fake" and not by_torch() else found

        return get_backend

    def _group(self, real: Any, name: str) -> Any:
        def new_group(*args: Any, **kwargs: Any) -> Any:
            backend = kwargs.pop("backend", None)
            kwargs.pop("device_id", None)
            if name == "new_group" and len(args) > 2:
                backend, args = args[2], (*args[:2], None, *args[3:])
            made = real(*args, **kwargs)
            if made is not None and made is not c10d.GroupMember.NON_GROUP_MEMBER:
                self.made += len(dist.get_process_group_ranks(made)) > 1 and "gloo" not in str(backend)
            return made

        return new_group

    def _meshes(self) -> None:
        """A mesh of GPUs is one of `cpu`, for which torch takes the same way."""
        import torch.distributed.device_mesh as module

        real: Any = module.init_device_mesh

        def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
            if not dist.is_initialized():
                self._start()
            return real("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

        module.init_device_mesh = dist.init_device_mesh = init_device_mesh
        mesh: Any = module.DeviceMesh
        begin = mesh.__init__

        def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

        mesh.__init__ = init

        def device_type(self: Any) -> Any:
            """DTensor's own interface moves what it is given to the mesh's device, as libraries do."""
            kind = self._device_type
            file = sys._getframe(1).f_code.co_filename
            outside = not by_torch() or file.endswith(MOVES)
            return "cuda" if kind == "cpu" and outside else kind

        mesh.device_type = property(device_type)

    # ------------------------------------------------------------------------------------ objects
    def _size(self, group: Any) -> int:
        return int(dist.get_world_size(group))

    def _same(self, name: str) -> None:
        self.notes.add("handled", f"{name}: every rank is taken to hold what rank 0 holds")

    def _all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        self._same("all_gather_object")
        if hasattr(obj, "shards_metadata"):
            object_list[:] = [_shards_of(obj, rank) for rank in range(len(object_list))]
            return
        object_list[:] = [obj] * len(object_list)

    def _gather_object(
        self, obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, **_: Any
    ) -> None:
        self._same("gather_object")
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def _scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, *_: Any, **__: Any
    ) -> None:
        self._same("scatter_object_list")
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[0]

    def _keeps(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self._same(name)

        return call

    # ------------------------------------------------------------------------------------ tensors
    def _all_reduce(self, real: Any) -> Any:
        def all_reduce(
            tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
        ) -> Any:
            work = real(tensor, op=op, group=group, async_op=async_op)
            found = values.shadow(tensor) if self.on_host else tensor
            counts = found is not None and not found.is_floating_point() and found.dtype != torch.bool
            if counts and not by_torch() and op == dist.ReduceOp.SUM and found.numel() <= MOST:
                self._same("all_reduce")
                with torch._C._DisableTorchDispatch(), torch.no_grad():
                    found.mul_(self._size(group))
            return work

        return all_reduce

    def _all_gather(self, real: Any) -> Any:
        def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
            work = real(tensor_list, tensor, group=group, async_op=async_op)
            found = values.shadow(tensor) if self.on_host else None
            if found is not None and not by_torch():
                self._same("all_gather")
                for out in tensor_list:
                    if type(out) is torch.Tensor:
                        out.copy_(found)
                    elif out.shape == found.shape:
                        out._doctor_value = found
            return work

        return all_gather

    # ------------------------------------------------------------------------------------ starting
    def _stores(self) -> None:
        """A store that waits for the other ranks would wait for ever."""
        store = c10d.HashStore if hasattr(c10d, "HashStore") else dist.HashStore

        def alone(*_: Any, **__: Any) -> Any:
            self.notes.add("handled", "a store for all ranks: a private one")
            return store()

        for name in ("TCPStore", "FileStore"):
            setattr(dist, name, alone)

    def _spawn(self) -> None:
        """Ranks that the script starts itself: rank 0 runs here."""
        import torch.multiprocessing as mp

        def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
            self.notes.add("handled", f"mp.spawn of {nprocs} ranks: rank 0 alone, in this process")
            fn(0, *args)

        module: Any = mp
        module.spawn = spawn
        if hasattr(module, "spawn") and hasattr(mp, "start_processes"):
            module.start_processes = spawn


def _shards_of(metadata: Any, rank: int) -> Any:
    """What another rank says of its shards of a tensor: as many as here, in the rows that follow."""
    theirs = copy.deepcopy(metadata)
    rows = sum(shard.shard_sizes[0] for shard in theirs.shards_metadata)
    for shard in theirs.shards_metadata:
        shard.shard_offsets[0] += rank * rows
        if rank and shard.placement is not None:
            shard.placement._rank = rank
    return theirs
