"""Builds the model, shards it on fake tensors and runs its steps under the tracker."""

from __future__ import annotations

from typing import Any

import torch
import torch._logging

from . import ctc, shortcuts, used
from .building import arguments_of, batch_function, batch_of, model_of
from .calibrated import CalibratedChoices, CalibratedKernels, Calibration
from .casting import Autocast
from .events import Events, write_json
from .fakes import Fakes
from .first_forward import Order, first_forward
from .ground import FakeGround
from .loading import Refused, no_network, one_line
from .meters import versions
from .plan import plan, unit_modules
from .refusals import watch
from .runtime import patch
from .sharding import Sharded, dtype, start_group
from .stepping import Loop
from .tracker import Tracker
from .values import Assumed


class Replay:
    """One job."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events = Events()
        self.tracker: Tracker | None = None
        self.hint = ""
        """What is said of the batch where the model does not get along with it."""

    def run(self) -> dict[str, Any]:
        """The result's fields; raises `Refused` and whatever torch raises."""
        job, stage = self.job, self.stage
        torch.manual_seed(0)
        no_network()
        stage.enter("building the model")
        start_group(job["world_size"])
        watch("cpu")
        assumed = Assumed()
        model = model_of(job, assumed)
        about = plan(model, job)
        if job.get("plan_path"):
            write_json(job["plan_path"], about)  # also where the steps fail
        units = unit_modules(model, about["units"])
        if job.get("plan_only"):
            return {**about, **self._order(model, units, assumed)}
        order = Order(units)
        made_by = batch_function(job)
        gpu = job.get("gpu") or {}
        calibration = Calibration(job)
        tracker = self.tracker = Tracker(self.events, CalibratedKernels(gpu, calibration))
        tracker.assumed = assumed
        tracker.assumed.imbalance = float(job.get("imbalance") or 1.0)
        stage.enter("sharding the model")
        sharded = Sharded(model, job, FakeGround(tracker))
        patch(tracker, bool(job.get("offload")))
        shortcuts.take()
        ctc.install()
        sharded.on_meta()
        tracker.where.name(model)
        tracker.where.install()
        CalibratedChoices(gpu, calibration).install()
        if job.get("autocast"):
            Autocast(dtype(job["autocast"])).install()
        with Fakes(allow_non_fake_inputs=True), tracker:
            self.events.mark("init")
            model = sharded.placed()
            stage.enter("making the batch")
            self.events.mark("batch")
            batch = batch_of(job, made_by, "cpu")
            tracker.steps = True
            loop = Loop(sharded, batch, job)
            self.hint = loop.hint
            order.install()
            for i in range(int(job.get("steps") or 2)):
                stage.enter(f"step {i + 1}")
                self.events.mark(f"step {i + 1}")
                loop.step()
        return {
            **about,
            "order": order.entered,
            "arguments": arguments_of(made_by),
            "assumed": tracker.assumed.listed(),
            "cudnn": versions()["cudnn"],
            "rules": sorted(used.RULES),
            **calibration.listed(),
        }

    def _order(self, model: torch.nn.Module, units: dict[int, int], assumed: Assumed) -> dict[str, Any]:
        """The units that one forward enters; None and why without a batch, or where it fails."""
        if self.job.get("batch") is None and not self.job["model"].startswith("hf:"):
            return {"order": None, "unordered": "no --batch was given"}
        self.stage.enter("one forward on shapes")
        try:
            seen = first_forward(model, self.job, batch_function(self.job), lambda: Order(units), assumed)
            return {"order": seen.entered}
        except Exception as error:
            text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            return {"order": None, "unordered": f"a forward on shapes failed: {one_line(text)}"}
