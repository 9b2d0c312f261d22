"""The job of a replay on real tensors: what a GPU's allocator counts at each moment, and one traced step."""

from __future__ import annotations

import os
from typing import Any

import torch

from . import runtime
from .building import batch_function, batch_of, model_of
from .events import Events, write_json
from .loading import Refused, no_network, one_line
from .meters import meter, versions
from .real_ground import RealGround
from .sharding import Sharded, start_group
from .stepping import Loop
from .tracing import Tracing, merge

OutOfMemory: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


class Measurement:
    """One job on the first visible GPU, or on the CPU where a test counts storages."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events = Events()
        """Of the traced step; empty where there is none."""
        self.tracker = None

    def run(self) -> dict[str, Any]:
        """The result's fields; raises `Refused` and whatever torch raises, except for being out of memory."""
        job, stage = self.job, self.stage
        torch.manual_seed(0)
        no_network()
        stage.enter("starting the device")
        counted = meter(job["measure"])
        counted.start()
        ground = RealGround(counted)
        found: dict[str, Any] = {"oom": None, "trace": ""}
        try:
            self._steps(ground, found)
        except OutOfMemory as error:
            found["oom"] = self._out(error, ground)
        except Refused as error:
            if not isinstance(error.__context__, OutOfMemory):
                raise
            found["oom"] = self._out(error.__context__, ground)
        if found["oom"] is not None:
            found.update(about=counted.about(), phases=ground.phases)
        return {"measured": found}

    def _steps(self, ground: RealGround, found: dict[str, Any]) -> None:
        job, stage = self.job, self.stage
        stage.enter("building the model")
        model = model_of(job)
        made_by = batch_function(job)
        start_group(job["world_size"])
        stage.enter("sharding the model")
        sharded = Sharded(model, job, ground)
        sharded.on_meta()
        ground.mark("init")
        sharded.placed()
        stage.enter("making the batch")
        ground.mark("batch")
        loop = Loop(sharded, batch_of(job, made_by, ground.device), job)
        for i in range(int(job.get("steps") or 2)):
            stage.enter(f"step {i + 1}")
            ground.mark(f"step {i + 1}")
            loop.step()
        ground.close()
        found.update(about=ground.about(), phases=list(ground.phases))
        if job.get("measured_path"):
            write_json(job["measured_path"], {"measured": found})  # should the traced step end the process
        if job["measure"].get("trace", True):
            stage.enter("the traced step")
            found["trace"] = self._traced(ground, loop)

    def _traced(self, ground: RealGround, loop: Loop) -> str:
        """One more step under the mode that names operators; returns why there is no trace, or ""."""
        counted, events = ground.meter, Events()
        tracing = Tracing(counted, events)
        tracing.where.name(loop.sharded.model)
        tracing.where.install()
        tracing.watch_resizing()
        runtime.label_buffers(tracing)
        first, held = counted.position(), counted.allocated()
        ground.tracing = tracing
        try:
            with counted.recorded() as entries, tracing:
                ground.mark(f"step {int(self.job.get('steps') or 2)}")
                loop.step()
            ground.close()
        except OutOfMemory:
            return "the traced step ran out of memory"
        except Exception as error:
            return f"the traced step failed: {one_line(f'{type(error).__name__}: {error}')}"
        merge(entries, first, held, tracing.calls, tracing.marks, events)
        self.events = events
        return ""

    def _out(self, error: BaseException, ground: RealGround) -> dict[str, Any]:
        ground.close()
        return {"text": str(error)[:2000], "stage": self.stage.name, "phase": ground.moment}


class Look:
    """The GPU at hand, before anything is asked of it."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events, self.tracker = Events(), None

    def run(self) -> dict[str, Any]:
        """`look`: what torch sees; `why` there is no GPU, or ""."""
        self.stage.enter("looking for a GPU")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        found: dict[str, Any] = {**versions(), "why": ""}
        if torch.version.cuda is None and torch.version.hip is None:
            found["why"] = f"torch {torch.__version__} is built without CUDA"
        elif not torch.cuda.is_available():
            try:
                torch.cuda.init()
                found["why"] = "torch sees no GPU"
            except Exception as error:
                found["why"] = one_line(str(error)) or "torch sees no GPU"
            if seen is not None:
                found["why"] += f" (CUDA_VISIBLE_DEVICES={seen!r})"
        else:
            torch.cuda.set_device(0)
            one = torch.cuda.get_device_properties(0)
            free, total = torch.cuda.mem_get_info()
            found.update(gpu=one.name, sm=one.major * 10 + one.minor, total_bytes=total, free_bytes=free)
        return {"look": found}
