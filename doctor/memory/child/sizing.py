"""How much one forward computes: on meta tensors, unsharded."""

from __future__ import annotations

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
        """`flops` of one forward of one rank; None where it needs values, and `why`."""
        job = self.job
        no_network()
        self.stage.enter("building the model")
        model = model_of(job)
        made_by = batch_function(job)
        found: dict[str, Any] = {"flops": None, "why": ""}
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
