"""What a model's function brings along that cannot be replayed: found before anything runs, and named."""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .hints import FOREIGN, OWN_LAYERS, PIPELINE, PLAIN
from .loading import Refused, place_of

KIND = "unmodelled"
COMPILED = "Inductor fuses and recomputes, so that it takes other memory than eager: leave torch.compile out"
QUANTISED = f"quantised parameters have {OWN_LAYERS}"
LISTED = 3


def watch(device: str) -> None:
    """Before the user's code is imported: what it may call while a process group of the doctor's stands.

    Meshes are made on `device`, so that what is built on them can be recognised and named.
    """
    dist.init_process_group = _nothing
    dist.distributed_c10d.init_process_group = _nothing
    _meshes(device)
    _compiling()
    nn.parallel.DistributedDataParallel.__init__ = _refuser(
        f"the model is wrapped by DistributedDataParallel already: {PLAIN}",
        nn.parallel.DistributedDataParallel.__init__,
    )
    experimental: Any = importlib.import_module("torch.distributed.tensor.experimental")
    if hasattr(experimental, "context_parallel"):
        experimental.context_parallel = _refuser(
            "context parallelism is not modelled: leave context_parallel out, with one rank's part of the "
            "sequence in the batch",
            experimental.context_parallel,
        )


@contextmanager
def unwrapped() -> Iterator[None]:
    """While the model is built: the user's function may not wrap it by FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper

    real = Wrapper.__init__
    Wrapper.__init__ = _refuser(f"the model is wrapped by FullyShardedDataParallel already: {PLAIN}", real)
    try:
        yield
    finally:
        Wrapper.__init__ = real


def inspect(model: nn.Module) -> None:
    """Raises `Refused` for a model that holds what is not modelled."""
    from torch.distributed.tensor import DTensor

    for name, module in model.named_modules():
        said = _foreign(module)
        if said:
            where = f"module {name}" if name else "the model"
            raise Refused(KIND, f"{where} ({type(module).__name__}): {said}")
    sharded = [n for n, p in model.named_parameters() if isinstance(p, DTensor)]
    if sharded:
        raise Refused(
            KIND,
            f"{_listed(sharded)} are DTensors: tensor, sequence and expert parallelism "
            f"(parallelize_module, distribute_tensor) are not modelled: {PLAIN}",
        )
    for name, p in model.named_parameters():
        said = _quantised(p)
        if said:
            raise Refused(KIND, f"parameter {name} {said}: {QUANTISED}")
    lazy = [n for n, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise Refused(
            "model",
            f"{_listed(lazy)} have no shape before a first forward: name the sizes in place of a lazy module",
        )


def _quantised(p: torch.Tensor) -> str:
    own: Any = getattr(type(p), "__torch_dispatch__", None)
    if own is not getattr(nn.Parameter, "__torch_dispatch__", None) and not nn.parameter.is_lazy(p):
        return f"is a {type(p).__name__}"
    if not (p.dtype.is_complex or (p.dtype.is_floating_point and p.dtype.itemsize > 1)):
        return f"has the type {str(p.dtype).removeprefix('torch.')}"
    return ""


def _foreign(module: nn.Module) -> str:
    kind = type(module)
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    for package, said in FOREIGN.items():
        if package in packages:
            return said
    if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
        return f"it is compiled: {COMPILED}"
    if kind.__module__.startswith("torch.distributed.pipelining"):
        return PIPELINE
    if isinstance(module, torch.jit.ScriptModule):
        return "TorchScript is not modelled: return the module that it was made from"
    if hasattr(module, "_fsdp_wrapped_module") or hasattr(module, "set_requires_gradient_sync"):
        return f"it is sharded by FSDP already: {PLAIN}"
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return f"it is wrapped by {kind.__name__} already: {PLAIN}"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
        return "its gradient is sparse, which FSDP does not reduce: make it with sparse=False"
    return ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"parameters {', '.join(names[:LISTED])}{more}"


def _nothing(*_: Any, **__: Any) -> None:
    """The doctor's process group stands already."""


def _meshes(device: str) -> None:
    import torch.distributed.device_mesh as meshes

    real = meshes.init_device_mesh

    @functools.wraps(real)
    def init_device_mesh(_device: str, *args: Any, **kwargs: Any) -> Any:
        return real(device, *args, **kwargs)

    meshes.init_device_mesh = init_device_mesh
    dist.init_device_mesh = init_device_mesh


def _compiling() -> None:
    """A compiled function refuses when it is called; a compiled module is found in the model."""
    real = torch.compile

    @functools.wraps(real)
    def compiling(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return functools.partial(compiling, **kwargs)
        if isinstance(model, nn.Module) or not callable(model):
            return real(model, **kwargs)
        return _refuser(f"{getattr(model, '__qualname__', 'a function')} is compiled: {COMPILED}", model)

    torch.compile = compiling


def _refuser(said: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused(KIND, said, place_of(traceback.extract_stack()))

    return refuse
