"""Single operators: what the replay's rules say they allocate against what an H200 allocated.

`python -m bench.memory_ops [WORDS…] [--worst N]` runs every operator of fixtures/memory_truth/ops_grid.py whose name
holds one of WORDS on fake tensors, and compares the peaks of forward and backward with ops.json.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

TRUTH = Path(__file__).parents[1] / "fixtures" / "memory_truth"
START = Path(__file__).parents[1] / "doctor" / "memory" / "child" / "start.py"
GPU = {"sm": 90, "processors": 132}


class Rows(Protocol):
    """The child's event list."""

    _columns: list[list[int]]

    def __len__(self) -> int:
        """Rows so far."""
        ...


@dataclass(frozen=True)
class Found:
    """Peaks of one operator in bytes as requested, predicted and measured; an error in place of figures."""

    name: str
    forward: tuple[int, int]
    backward: tuple[int, int] | None
    error: str = ""
    in_order: bool = False
    """Whether every block was allocated and freed in the measured order, in sizes as the allocator rounds them."""

    @property
    def off(self) -> float:
        """The larger relative error."""
        return max(abs(a / b - 1) if b else float(a > 0) for a, b in (self.forward, self.backward or (1, 1)))


def peak(sizes: list[int]) -> int:
    """The highest sum of allocations (positive) and frees (negative)."""
    now = top = 0
    for size in sizes:
        now += size
        top = max(top, now)
    return top


def load(path: Path, name: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compare(words: list[str]) -> list[Found]:
    """All operators whose names hold one of the words. Imports torch and changes it for good."""
    start = load(START, "replay_start")
    torch = importlib.import_module("torch")
    for part in ("tracker", "events", "kernels", "choices", "casting", "runtime"):
        start.load(part)
    child = {
        part: start.load(part) for part in ("tracker", "events", "kernels", "choices", "casting", "runtime")
    }
    from torch._subclasses.fake_tensor import FakeTensorMode

    events = child["events"].Events()
    kernels = child["kernels"].Kernels(GPU)
    tracker = child["tracker"].Tracker(events, kernels)
    child["runtime"].patch(tracker)
    child["choices"].Choices(GPU).install()
    child["casting"].Autocast(torch.bfloat16).install()
    vars(start.load("known"))["MOST_FLOATS"] = 1 << 17  # the values of weights are of no matter either
    start.load("known").MOST_FLOATS = 1 << 17  # operands are large, and their values of no matter
    torch.nn.RNNBase.reset_parameters = lambda _: None  # values are of no matter, and take half of the time
    grid = load(TRUTH / "ops_grid.py", "ops_grid")
    measured = {o["name"]: o for o in json.loads((TRUTH / "ops.json").read_text())["ops"]}
    found: list[Found] = []
    with FakeTensorMode(allow_non_fake_inputs=True), tracker:
        vars(grid)["DEVICE"] = "cpu"
        for name, make, _ in grid.CASES:
            real = measured.get(name)
            if real is None or "error" in real or (words and not any(w in name for w in words)):
                continue
            found.append(one(name, make, real, events, torch))
    return found


def one(
    name: str,
    make: Callable[[], tuple[Callable[[], Any], list[Any]]],
    real: dict[str, Any],
    events: Rows,
    torch: ModuleType,
) -> Found:
    """One operator, run twice: what it keeps from the first call on is no part of it."""
    forward = (0, peak(real["forward"]))
    backward = (0, peak(real["backward"])) if "backward" in real else None
    steps: list[list[int]] = []
    try:
        run, leaves = make()
        for again in (False, True):
            at = len(events)
            result = run()
            steps = [sizes(events, at)]
            forward = (peak(steps[0]), forward[1])
            result = result[0] if isinstance(result, (tuple, list)) else result
            if not isinstance(result, torch.Tensor) or not result.requires_grad:
                continue
            grad = torch.empty_like(result)  # values that are known would be followed through backward
            at = len(events)
            result.backward(grad)
            if backward is not None:
                steps.append(sizes(events, at))
                backward = (peak(steps[1]), backward[1])
            del grad
            if not again:
                result = None
                for leaf in leaves:
                    leaf.grad = None
    except Exception as error:
        return Found(name, forward, backward, f"{type(error).__name__}: {error}".split("\n")[0][:200])
    said = [real["forward"], *([real["backward"]] if "backward" in real else [])]
    return Found(name, forward, backward, in_order=in_blocks(steps) == in_blocks(said))


def rounded(size: int) -> int:
    """Bytes in whole blocks of the allocator; frees stay negative."""
    return (1 if size > 0 else -1) * -(-abs(size) // 512) * 512


def in_blocks(calls: list[list[int]]) -> list[list[int]]:
    """Sizes of each call as the allocator rounds them."""
    return [[rounded(size) for size in call] for call in calls]


def sizes(events: Rows, at: int) -> list[int]:
    """What was allocated and freed since a row."""
    kinds, blocks, amounts = events._columns[:3]
    known: dict[int, int] = {}
    made: list[int] = []
    for row in range(len(kinds)):
        if kinds[row] == 0:
            known[blocks[row]] = amounts[row]
        if row < at:
            continue
        if kinds[row] == 0:
            made.append(amounts[row])
        elif kinds[row] == 1:
            made.append(-known[blocks[row]])
    return made


def main(arguments: list[str]) -> None:
    """Print the worst and the distribution."""
    worst = int(arguments[arguments.index("--worst") + 1]) if "--worst" in arguments else 40
    words = [a for a in arguments if not a.startswith("--") and not a.isdigit()]
    found = compare(words)
    for f in sorted(found, key=lambda f: -f.off)[:worst]:
        back = f"{f.backward[0]:>12,} {f.backward[1]:>12,}" if f.backward else ""
        print(f"{f.off:8.3f} {f.name[:64]:64s} {f.forward[0]:>12,} {f.forward[1]:>12,} {back} {f.error}")
    exact = sum(f.off < 0.001 for f in found)
    print(
        f"{len(found)} operators, {exact} within 0.1 %, {sum(f.off > 0.05 for f in found)} off by more than 5 %"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
