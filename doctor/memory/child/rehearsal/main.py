"""One rehearsal: reads the job, runs the script as rank 0 of N and leaves `result.json` in its folder."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import threading
import time
import traceback
import warnings
from functools import partial
from typing import Any, NoReturn

from ..events import write_json
from ..fences import leave
from ..loading import Offline, Refused, no_network, one_line
from .ending import exchanged, heed, of_exit

EARLIER = 1.5
"""Seconds before the last moment at which a script that runs late is asked where it stands."""
WHILE_REHEARSED = "in a rehearsal, which has no network"


class Rehearsal:
    """The job, and what is known of it so far."""

    def __init__(self, job: dict[str, Any], folder: str) -> None:
        self.job, self.folder = job, folder
        self.began = time.monotonic()
        self.steps: Any = None
        self.notes: Any = None
        self.meter: Any = None
        self.ranks: Any = None
        self.tracker: Any = None
        self.programs: Any = None
        self.mode = ""
        self._over = threading.Lock()

    def finish(self, reason: str, **more: object) -> NoReturn:
        """Leave the answer and end this process as it stands: nothing of the script's ending is wanted."""
        if not self._over.acquire(blocking=False):
            leave(0)
        result: dict[str, Any] = {"ended": reason, "mode": self.mode, **more}
        try:
            if self.programs is not None:
                self.programs.finish()
            if self.steps is not None:
                result.update(
                    steps_done=self.steps.done,
                    backwards=self.steps.backwards,
                    forwards=self.steps.forwards,
                    optimizers=self.steps.classes(),
                )
            if self.notes is not None:
                assumed = self.tracker.assumed.listed() if self.tracker is not None else []
                result["assumed"] = self.notes.listed("assumed") + assumed
                result["elsewhere"] = self.notes.listed("elsewhere")
                result["handled"] = self.notes.listed("handled")
                result["unwritten"] = self.notes.paths()
            if self.ranks is not None:
                result["groups"] = self.ranks.made
            if self.meter is not None:
                result.update(self.meter.result(self.folder))
        except BaseException as error:
            text = one_line(f"{type(error).__name__}: {error}")
            ours = {"kind": "child", "text": text, "trace": traceback.format_exc()[-6000:]}
            result.setdefault("problem", ours)  # the script's own comes first
        result["seconds"] = round(time.monotonic() - self.began, 3)
        write_json(os.path.join(self.folder, "result.json"), result)
        sys.stdout.flush()
        sys.stderr.flush()
        leave(0)


def main(path: str) -> None:
    """Run the job at `path`."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    folder = os.path.dirname(os.path.abspath(path))
    stack = open(os.path.join(folder, "stack"), "w")  # noqa: SIM115 - open until the end
    faulthandler.enable(stack)
    rehearsal = Rehearsal(job, folder)
    if job.get("seconds"):
        seconds = float(job["seconds"])
        faulthandler.dump_traceback_later(
            seconds, exit=True, file=stack
        )  # should the thread not get its turn
        alarm = threading.Timer(max(0.5, seconds - EARLIER), _late, (rehearsal, threading.get_ident()))
        alarm.daemon = True
        alarm.start()
    _stage(folder, "importing torch")
    try:
        _prepare(rehearsal)
        _stage(folder, "running the script")
        _run(rehearsal)
    except Refused as error:
        rehearsal.finish("refused", problem=_problem(error.kind, error.text, error.place))
    except SystemExit as error:
        rehearsal.finish("exit", **of_exit(error, rehearsal))
    except BaseException as error:
        _failed(rehearsal, error)
    rehearsal.finish("end")


def _late(rehearsal: Rehearsal, thread: int) -> None:
    """The time is over: say where the script stands, and what it did until then."""
    from .notes import library

    frames = traceback.extract_stack(sys._current_frames().get(thread))
    own = [f for f in frames if not library(f.filename)]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    rehearsal.meter = None  # the script goes on allocating
    done = rehearsal.steps.done if rehearsal.steps is not None else 0
    said = f"{done} of {rehearsal.job['steps']} optimizer steps {'was' if done == 1 else 'were'} finished"
    text = f"{said} in {rehearsal.job['asked']:.0f} s"
    rehearsal.finish("late", problem=_problem("time", text, place))


def _stage(folder: str, name: str) -> None:
    with open(os.path.join(folder, "stage"), "w") as file:
        file.write(name)


def _problem(kind: str, text: str, place: str = "", **more: object) -> dict[str, object]:
    return {"kind": kind, "text": text, "place": place, **more}


def _prepare(rehearsal: Rehearsal) -> None:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Refused(
            "torch", f"{sys.executable} has no torch: name the Python of the training with --python"
        ) from None
    from . import files, full_states, groups, libraries, sandbox, saving, schedulers, steps, unmodelled, works
    from .notes import Notes
    from .overlay import Overlay
    from .programs import Programs
    from .script import accelerate_environment, environment

    job, folder = rehearsal.job, rehearsal.folder
    warnings.simplefilter("ignore")
    notes = rehearsal.notes = Notes()
    world, local = int(job["world_size"]), int(job["local_world_size"])
    temporary = os.path.join(folder, "tmp")
    os.makedirs(temporary, exist_ok=True)
    os.environ.update(environment(job), TMPDIR=temporary)
    told = schedulers.variables(job, os.environ)
    os.environ.update(told)
    if told:
        notes.add("handled", f"the variables of {job['scheduler']}: as its first task would see them", "")
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "MPLCONFIGDIR"):
        os.environ[name] = os.path.join(temporary, name.lower())
    tempfile.tempdir = temporary
    before = _before(job)
    faking = _faking(job, notes)
    rehearsal.mode = "fake" if faking else "gpu"
    counter: Any
    if faking:
        from .replayed import Replayed

        counter = Replayed(job, notes)
        rehearsal.tracker = counter.tracker
    else:
        from .measured import Measured

        counter = Measured(notes, before, local)
    rehearsal.meter = counter
    step = rehearsal.steps = steps.Steps(counter, int(job["steps"]), rehearsal.finish)
    ranks = rehearsal.ranks = groups.Ranks(world, local, notes, on_host=faking)
    torch.manual_seed(0)
    ranks.install()
    works.Works().install()
    unmodelled.refuse_unmodelled()
    saving.install(notes, step, faking)
    full_states.install(notes, rehearsal.tracker)
    libraries.install(notes, faking)
    counter.install(step)
    step.install()
    if job.get("accelerate") is not None:
        os.environ.update(accelerate_environment(job["accelerate"], world, local, notes))
    overlay = Overlay(os.path.join(folder, "written"), folder, notes)
    os.makedirs(overlay.root, exist_ok=True)
    why = sandbox.confine(folder)
    if why is not None:
        notes.add("assumed", f"writes are redirected in Python alone ({why})", "")
    rehearsal.programs = Programs(notes, overlay, confined=why is None)
    rehearsal.programs.install(partial(exchanged, rehearsal))
    files.install(overlay)
    no_network(WHILE_REHEARSED)


def _before(job: dict[str, Any]) -> Any:
    """What is in use before torch is asked for a GPU, which takes memory by itself."""
    if job.get("device", "auto") == "fake":
        return None
    from .measured import Before

    return Before()


def _faking(job: dict[str, Any], notes: Any) -> bool:
    """Whether to rehearse on fake tensors; an idle GPU is used unless that was forbidden."""
    import torch

    wish = job.get("device", "auto")
    if wish == "fake":
        return True
    if not torch.cuda.is_available():
        if wish == "gpu":
            raise Refused("gpu", "--device gpu: torch sees no GPU here")
        return True
    free, total = torch.cuda.mem_get_info(0)
    if wish == "auto" and total - free > (2 << 30):
        used = (total - free) / 2**30
        notes.add("assumed", f"fake tensors: another process holds {used:.1f} GiB of the GPU here", "")
        return True
    return False


def _run(rehearsal: Rehearsal) -> None:
    from . import script

    heed(rehearsal)
    with rehearsal.meter.active():
        script.run(rehearsal.job)


def _failed(rehearsal: Rehearsal, error: BaseException) -> NoReturn:
    """What the script raised, in one line with its place."""
    from .failure import described

    rehearsal.finish("raised", problem=described(error, rehearsal))


__all__ = ["Offline", "main"]
