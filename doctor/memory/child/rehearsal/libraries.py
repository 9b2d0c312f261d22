"""Libraries that scripts are built on: what has to be told to each once it is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .devices import GPU, translated
from .notes import Notes, Refusal, library, script_place
from .saving import size_of

QUIET = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Loggers that would send something, and hubs that would fetch something."""
TRACKERS = ("wandb", "comet_ml", "clearml", "neptune", "mlflow")
EIGHT_BIT = ("bitsandbytes.optim", "torchao.optim", "torchao.prototype.low_bit_optim")


def install(notes: Notes, faking: bool) -> None:
    """Set variables, and wait for imports."""
    os.environ.update(QUIET)
    after: dict[str, Callable[[ModuleType], None]] = {
        "safetensors.torch": lambda m: _safetensors(m, notes, faking),
        "transformers.utils.import_utils": _no_tracing,
        "torch.distributed.launcher.api": lambda m: _launched_here(m, notes),
        "torch.distributed.optim.zero_redundancy_optimizer": lambda m: _states_of_others(m, notes),
        **dict.fromkeys(EIGHT_BIT, _eight_bit),
        **{name: _quiet(name, notes) for name in TRACKERS},
    }
    for name in [n for n in after if n in sys.modules]:
        after.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(after))
    if faking:
        _compile(notes)
        _profilers(notes)


def _quiet(name: str, notes: Notes) -> Callable[[ModuleType], None]:
    return lambda _: notes.add("handled", f"{name}: nothing is sent", "")


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function once a module has been imported."""

    def __init__(self, after: dict[str, Callable[[ModuleType], None]]) -> None:
        self._after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that reports back."""
        act = self._after.pop(fullname, None)
        if act is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    break
        else:
            return None
        loader: Any = spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                act(module)

            loader.exec_module = exec_module
        return spec


def _safetensors(module: Any, notes: Notes, faking: bool) -> None:
    def save(tensors: Any, filename: Any, *_: Any, **__: Any) -> None:
        notes.unwritten(os.path.abspath(os.fspath(filename)), "safetensors", size_of(tensors))
        with open(filename, "wb"):
            pass

    module.save_file = save
    module.save_model = lambda model, filename, *_, **__: save(dict(model.state_dict()), filename)
    if faking:
        load = module.load_file

        def load_file(filename: Any, device: Any = "cpu") -> Any:
            found = load(filename)
            return {k: v.to(GPU) for k, v in found.items()} if translated(device) == GPU else found

        module.load_file = load_file


def _launched_here(module: Any, notes: Notes) -> None:
    """Ranks that the script starts by torchrun's own interface, or by notebook_launcher: rank 0 runs here."""

    def call(self: Any, *args: Any) -> dict[int, Any]:
        function = self._entrypoint
        if not callable(function):
            raise Refusal("refused", f"the script starts a job of {function}: rehearse that itself")
        ranks = self._config.nproc_per_node
        notes.add("handled", f"elastic_launch of {ranks} ranks: rank 0 alone, in this process")
        return {0: function(*args)}

    module.elastic_launch.__call__ = call


def _states_of_others(module: Any, notes: Notes) -> None:
    """ZeroRedundancyOptimizer receives each rank's states to put a whole together; here they are empty."""
    optimizer, send = module.ZeroRedundancyOptimizer, module._broadcast_object
    consolidate = optimizer.consolidate_state_dict
    others: list[list[dict[str, Any]]] = []
    """Parameter groups of the ranks that are still to be received, the next one last."""

    def consolidated(self: Any, *args: Any, **kwargs: Any) -> Any:
        notes.add("assumed", "ZeroRedundancyOptimizer: the states of other ranks are not received")
        parts = [
            [{**mine, "params": list(range(len(g["params"])))} for g, mine in zip(rank, self.param_groups)]  # noqa: B905
            for rank in self._partition_parameters()
        ]
        others[:] = [part for rank, part in enumerate(parts) if rank != self.rank][::-1]
        return consolidate(self, *args, **kwargs)

    def broadcast(obj: Any, src_rank: int, *args: Any, **kwargs: Any) -> Any:
        if src_rank == 0:
            return send(obj, src_rank, *args, **kwargs)
        return {"state": {}, "param_groups": others.pop() if others else []}

    optimizer.consolidate_state_dict, module._broadcast_object = consolidated, broadcast


def _no_tracing(module: Any) -> None:
    """Transformers takes a fake tensor for one that is traced, and then builds masks in vain."""
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda _: False


def _eight_bit(module: Any) -> None:
    for name in dir(module):
        kind = getattr(module, name)
        if isinstance(kind, type) and any(part in name.lower() for part in ("8bit", "4bit", "fp8")):

            def refused(self: Any, *_: Any, kind: str = name, **__: Any) -> None:
                raise Refusal(
                    "refused",
                    f"{kind} is not rehearsed: its state lives in kernels that have no shape-only form",
                )

            setattr(kind, "__init__", refused)  # noqa: B010 - a class of another package


def _compile(notes: Notes) -> None:
    """A compiled model allocates by another plan; small functions that libraries compile do not matter."""
    module: Any = torch

    def compiled(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda f: compiled(f, **kwargs)
        disabled = os.environ.get("TORCHDYNAMO_DISABLE") == "1" or kwargs.get("disable")
        whole = isinstance(model, torch.nn.Module) or not library(sys._getframe(1).f_code.co_filename)
        if whole and not disabled:
            raise Refusal(
                "refused",
                "torch.compile is not rehearsed without a GPU: its memory plan is the compiler's own "
                "(TORCHDYNAMO_DISABLE=1 rehearses the eager form)",
            )
        notes.add("assumed", "torch.compile: the eager form is run", script_place())
        return model

    module.compile = compiled

    def compile_in_place(self: Any, *_: Any, **kwargs: Any) -> None:
        compiled(self, **kwargs)

    torch.nn.Module.compile = compile_in_place


class _Nothing(str):
    """What a profiler that saw nothing says: an empty table, and no events."""

    def __getattr__(self, name: str) -> Any:
        return _silent(name)


def _silent(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_, **__: _Nothing()


def _profilers(notes: Notes) -> None:
    """A profile of fake tensors is of no use, and each of their operators is many to a profiler."""

    class Profile:
        """In place of a profiler; no handler of traces is called."""

        step_num = 0

        def __init__(self, *_: Any, **__: Any) -> None:
            notes.add("handled", "the profiler: nothing is recorded, on_trace_ready is not called")

        def __getattr__(self, name: str) -> Any:
            return _silent(name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def step(self) -> None:
            """The next step begins."""
            self.step_num += 1

    profilers: Any = torch.profiler
    profilers.profile = profilers.profiler.profile = Profile
    torch.autograd.profiler.profile = Profile
