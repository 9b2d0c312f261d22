"""Builds the model, shards it on fake tensors and runs its steps under the tracker."""

from __future__ import annotations

from typing import Any

import torch
import torch._logging
from torch._subclasses.fake_tensor import FakeTensorMode

from .casting import Autocast
from .choices import Choices
from .events import Events, write_json
from .kernels import Kernels
from .loading import HfLoss, Refused, call, function, hf_batch, no_network
from .plan import Order, plan, unit_modules
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
        about = plan(model, job)
        if job.get("plan_path"):
            write_json(job["plan_path"], about)  # also where the steps fail
        order = Order(unit_modules(model, about["units"]))
        if job.get("plan_only"):
            about["order"] = self._order(model, order)
            return about
        batch_function = self._batch_function()
        gpu = job.get("gpu") or {}
        tracker = self.tracker = Tracker(self.events, Kernels(gpu))
        tracker.assumed.imbalance = float(job.get("imbalance") or 1.0)
        start_group(job["world_size"])
        stage.enter("sharding the model")
        sharded = Sharded(model, job, tracker)
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
            order.install()
            for i in range(int(job.get("steps") or 2)):
                stage.enter(f"step {i + 1}")
                self.events.mark(f"step {i + 1}")
                loop.step()
        return {**about, "order": order.entered, "assumed": tracker.assumed.listed()}

    def _order(self, model: torch.nn.Module, order: Order) -> list[int] | None:
        """The units that a forward on meta tensors enters; None without a batch, or where it needs values."""
        if self.job.get("batch") is None:
            return None
        self.stage.enter("one forward on meta tensors")
        handle = order.install()
        try:
            with torch.no_grad(), torch.device("meta"):
                batch = self._batch(self._batch_function(), "meta")
                model(*batch)
        except Exception:
            return None
        finally:
            handle.remove()
        return order.entered

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

    def _batch(self, batch_function: Any, device: str = "cpu") -> tuple[Any, ...]:
        batch = call(batch_function, self.job.get("batch_args") or {}, "batch", device)
        if not isinstance(batch, tuple):
            batch = tuple(batch) if isinstance(batch, list) else (batch,)
        return batch
