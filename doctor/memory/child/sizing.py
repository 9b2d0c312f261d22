"""How much one forward computes, and which arguments the batch function has: on meta tensors, unsharded."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .building import batch_function, batch_of, model_of
from .events import Events
from .loading import no_network
from .stepping import arguments
from .tracker import Tracker


class Sizing:
    """One job's forward."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events = Events()
        self.tracker: Tracker | None = None

    def run(self) -> dict[str, Any]:
        """`flops` of one forward of one rank (None where it needs values), and the batch's `arguments`."""
        job = self.job
        no_network()
        self.stage.enter("building the model")
        model = model_of(job)
        made_by = batch_function(job)
        found: dict[str, Any] = {"arguments": _arguments(made_by), "flops": None, "why": ""}
        self.stage.enter("counting one forward")
        try:
            with torch.no_grad(), torch.device("meta"):
                given, named = arguments(model, batch_of(job, made_by, "meta"))
                with FlopCounterMode(display=False) as counted:
                    model(*given, **named)
            found["flops"] = counted.get_total_flops()
        except Exception as error:
            found["why"] = f"{type(error).__name__}: {error}"[:300]
        return found


def _arguments(made_by: Any) -> dict[str, Any]:
    """Names of the function's arguments after the device, with their defaults where these are numbers."""
    try:
        parameters = list(inspect.signature(made_by).parameters.values())[1:]
    except (TypeError, ValueError):
        return {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p.default if isinstance(p.default, int) else None for p in named}
