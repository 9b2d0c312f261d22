"""How much one forward computes: on shapes, unsharded."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from .building import batch_function, model_of
from .events import Events
from .first_forward import first_forward
from .loading import no_network
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
            counted = first_forward(model, job, made_by, lambda: FlopCounterMode(display=False))
            found["flops"] = counted.get_total_flops()
        except Exception as error:
            found["why"] = f"{type(error).__name__}: {error}"[:300]
        return found
