"""Builds the model, shards it on fake tensors and runs its steps under the tracker."""

from __future__ import annotations

from typing import Any

import torch
import torch._logging
from torch._subclasses.fake_tensor import FakeTensorMode

from .casting import Autocast
from .choices import Choices
from .events import Events
from .kernels import Kernels
from .loading import HfLoss, Refused, call, function, hf_batch, no_network
from .plan import describe, repeated
from .runtime import patch
from .sharding import Sharded, dtype, start_group
from .stepping import Loop
from .tracker import Tracker


class Replay:
    """One job."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events = Events()
        self.tracker: Tracker | None = None

    def run(self) -> dict[str, Any]:
        """The result's fields; raises `Refused` and whatever torch raises."""
        job, stage = self.job, self.stage
        torch.manual_seed(0)
        no_network()
        stage.enter("building the model")
        model = self._model()
        batch_function = self._batch_function()
        parameters = sum(p.numel() for p in model.parameters())
        gpu = job.get("gpu") or {}
        tracker = self.tracker = Tracker(self.events, Kernels(gpu))
        tracker.assumed.imbalance = float(job.get("imbalance") or 1.0)
        start_group(job["world_size"])
        stage.enter("sharding the model")
        sharded = Sharded(model, job, tracker)
        plan = {**describe(model, sharded.wrap), "repeated": repeated(model)}
        if job.get("plan_only"):
            return {"torch": torch.__version__, "params": parameters, "assumed": [], **plan}
        patch(tracker)
        sharded.before_fakes()
        tracker.where.name(model)
        tracker.where.install()
        Choices(gpu).install()
        if job.get("autocast"):
            Autocast(dtype(job["autocast"])).install()
        with FakeTensorMode(allow_non_fake_inputs=True), tracker:
            self.events.mark("init")
            model = sharded.on_fakes()
            stage.enter("making the batch")
            self.events.mark("batch")
            batch = self._batch(batch_function)
            loop = Loop(sharded, batch, job, tracker)
            for i in range(int(job.get("steps") or 2)):
                stage.enter(f"step {i + 1}")
                self.events.mark(f"step {i + 1}")
                loop.step()
        return {
            "torch": torch.__version__,
            "params": parameters,
            **plan,
            "assumed": tracker.assumed.listed(),
        }

    def _model(self) -> torch.nn.Module:
        spec, args = self.job["model"], self.job.get("model_args") or {}
        factory: Any = HfLoss(spec[3:]) if spec.startswith("hf:") else function(spec, "model")
        with torch.device("meta"):
            model = call(factory, args, "model")
        if not isinstance(model, torch.nn.Module):
            raise Refused(
                "model", f"--model {spec}: it returned a {type(model).__name__} and not a torch.nn.Module"
            )
        if self.job.get("dtype"):
            model = model.to(dtype(self.job["dtype"]))
        return model

    def _batch_function(self) -> Any:
        spec = self.job.get("batch")
        if spec is None and self.job["model"].startswith("hf:"):
            return hf_batch
        if spec is None:
            raise Refused("batch", "--batch FILE.py:FUNC is needed: a function that makes one batch")
        return function(spec, "batch")

    def _batch(self, batch_function: Any) -> tuple[Any, ...]:
        batch = call(batch_function, self.job.get("batch_args") or {}, "batch", "cpu")
        if not isinstance(batch, tuple):
            batch = tuple(batch) if isinstance(batch, list) else (batch,)
        return batch
