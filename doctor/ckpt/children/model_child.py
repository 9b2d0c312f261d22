"""Builds a model on the meta device and prints what its state_dict() asks for, as one line of JSON.

    python -B model_child.py START SPEC JSON_ARGUMENTS

START is `doctor/memory/child/start.py`: of its folder, `loading` knows how a factory is named.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Protocol, cast


class Value(Protocol):
    """A parameter or a buffer."""

    shape: tuple[int, ...]
    dtype: object
    requires_grad: bool


class Module(Protocol):
    """What is used of torch.nn.Module."""

    def named_parameters(self, *, remove_duplicate: bool) -> Iterable[tuple[str, Value]]:
        """Parameters by name."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Modules by name."""

    def state_dict(self, *, keep_vars: bool) -> Mapping[str, Value]:
        """Parameters and persistent buffers by name."""


def _loader(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fsdp_doctor_start", path)
    assert spec is not None and spec.loader is not None
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    return cast("ModuleType", start.load("loading"))


def build(loader: ModuleType, spec: str, arguments: dict[str, object]) -> Module:
    """The module on the meta device. Raises the loader's `Refused`."""
    import torch

    loader.no_network()
    with contextlib.redirect_stdout(sys.stderr), torch.device("meta"):
        if spec.startswith("hf:"):
            net = loader.call(loader.HfLoss(spec[3:]), arguments, "model")
            return cast("Module", getattr(net, "net", net))
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return cast("Module", loader.call(loader.function(spec, "model"), arguments, "model"))


def described(net: Module) -> dict[str, object]:
    """Tensors in the order of state_dict(), ties and modules."""
    parameters = dict(net.named_parameters(remove_duplicate=False))
    tensors: list[list[object]] = []
    same: dict[int, list[str]] = {}
    for name, value in net.state_dict(keep_vars=True).items():
        if not hasattr(value, "shape"):
            continue
        own = parameters.get(name)
        dtype = str(value.dtype).rpartition(".")[2]
        tensors.append([name, list(value.shape), dtype, own is None, bool(own is None or own.requires_grad)])
        same.setdefault(id(value), []).append(name)
    modules = [[name, type(module).__name__] for name, module in net.named_modules()]
    return {"tensors": tensors, "tied": [n for n in same.values() if len(n) > 1], "modules": modules}


def main(start: str, spec: str, arguments: str) -> None:
    """Print {"model": …} or {"error", "place"}."""
    loader = _loader(start)
    try:
        net = build(loader, spec, json.loads(arguments))
        if hasattr(net, "state_dict"):
            answer: dict[str, object] = {"model": described(net)}
        else:
            answer = {"error": f"the factory gave a {type(net).__name__} and no module"}
    except loader.Refused as refused:
        answer = {"error": str(refused), "place": refused.place}
    except Exception as error:  # whatever the user's model raises is the answer
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads that the model's imports started must not hold the doctor up


if __name__ == "__main__":
    main(*sys.argv[1:4])
