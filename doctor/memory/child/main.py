"""One replay: reads the job, runs it, and leaves `result.json` and `events.bin` in the job's folder."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import sys
import time
import traceback
import warnings
from typing import Any

from .events import write_json
from .fences import end_copy, guard, leave
from .hints import hint, lacking, said, unmodelled
from .loading import Refused, one_line, user_place


class Stage:
    """What is being done, for whoever has to say where a replay stopped."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "stage")
        self._began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.name = ""

    def enter(self, name: str) -> None:
        """The next stage begins."""
        now = time.monotonic()
        if self.name:
            self.seconds[self.name] = round(now - self._began, 3)
        self.name, self._began = name, now
        with open(self._path, "w") as file:
            file.write(name)


def main(path: str) -> None:
    """Run the job at `path`; what goes wrong is in the result."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    folder = os.path.dirname(os.path.abspath(path))
    stack = open(os.path.join(folder, "stack"), "w")  # noqa: SIM115 - open until the end
    faulthandler.enable(stack)
    if job.get("seconds"):
        faulthandler.dump_traceback_later(float(job["seconds"]), exit=True, file=stack)
    stage = Stage(folder)
    guard()
    os.dup2(2, 1)  # what the user's code prints is no answer
    warnings.simplefilter("ignore")
    began = time.monotonic()
    result: dict[str, Any] = {}
    replay = None
    try:
        stage.enter("importing torch")
        try:
            gc.disable()  # modules stay: to look for cycles among them takes a tenth of the import
            works = _works()
            gc.freeze()
            gc.enable()
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Refused(
                "torch", f"{sys.executable} has no torch: name the Python of the training with --python"
            ) from None
        replay = works[job.get("work") or "replay"](job, stage)
        result = replay.run()
        stage.enter("writing")
        replay.events.write(os.path.join(folder, "events.bin"))
        result.update(replay.events.header())
    except Refused as error:
        result = {
            "refused": {
                "kind": error.kind,
                "text": error.text,
                "place": error.place,
                "trace": error.trace,
                **error.more,
            }
        }
    except BaseException as error:
        result = {"refused": _failure(error, stage.name, replay)}
    end_copy()
    result["seconds"] = round(time.monotonic() - began, 3)
    result["stages"] = stage.seconds
    result["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    write_json(os.path.join(folder, "result.json"), result)
    leave(0)  # taking fake tensors and process groups apart in order takes seconds and serves nobody


def _works() -> dict[str, Any]:
    """What a job can ask for; each has `run`, `events` and a `tracker` or None."""
    from .calibrating import Calibrating
    from .measuring import Look, Measurement
    from .replay import Replay
    from .sizing import Sizing

    return {
        "replay": Replay,
        "measure": Measurement,
        "look": Look,
        "calibrate": Calibrating,
        "size": Sizing,
    }


def _failure(error: BaseException, stage: str, replay: Any) -> dict[str, Any]:
    """An exception of torch's or of the model's, in one line with its module and place."""
    text = one_line(f"{type(error).__name__}: {said(error)}".strip().rstrip(":")) + hint(error)
    if replay is not None and isinstance(error, (TypeError, AttributeError, KeyError)):
        text += getattr(replay, "hint", "")
    kind, operator = "unmodelled" if unmodelled(error) else "failed", ""
    name = type(error).__name__
    if replay is not None and replay.tracker is not None:
        operator = str(replay.tracker.running or "")
        if name in (
            "UnsupportedOperatorException",
            "DynamicOutputShapeException",
            "DataDependentOutputException",
        ) or (
            (isinstance(error, NotImplementedError) and "fake" in said(error).lower())
            or ("meta" in said(error).lower() and isinstance(error, NotImplementedError))
        ):
            kind = "operator"
    return {
        "kind": kind,
        "text": text,
        "stage": stage,
        "operator": operator,
        "module": replay.tracker.failed_in if replay is not None and replay.tracker is not None else "",
        "place": user_place(error),
        "lacks": lacking(error),
        "trace": "".join(traceback.format_exception(type(error), error, error.__traceback__))[-8000:],
    }
