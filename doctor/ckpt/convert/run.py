"""Convert in a child, with progress and a deadline."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import fsdp_doctor
from fsdp_doctor.ckpt.convert.here import Converted, Order
from fsdp_doctor.ckpt.convert.model import ConvertError
from fsdp_doctor.ckpt.path import is_remote
from fsdp_doctor.process import Child, start

CHILD = Path(__file__).with_name("child.py")
PACKAGE_ROOT = Path(fsdp_doctor.__file__).parent.parent
Progress = Callable[[int, int], None]
"""Hears bytes done and bytes in all."""
LOOK = 0.1


def convert(order: Order, deadline: float, progress: Progress | None = None) -> Converted:
    """Convert a checkpoint. Raises `ConvertError` with one line, `TimeoutError` at the deadline (seconds)."""
    isolated = [] if is_remote(order.source) else ["-I", "-S"]
    argv = [sys.executable, *isolated, str(CHILD), str(PACKAGE_ROOT), json.dumps(asdict(order))]
    with start(argv, stderr_limit=1 << 20) as child:
        if progress is not None:
            threading.Thread(target=_follow, args=(child, progress), daemon=True).start()
        outcome = child.result(deadline)
    if outcome.timed_out:
        raise TimeoutError(f"not converted within {deadline:g} s: call it again, and it goes on where it was")
    try:
        answer = json.loads(outcome.stdout)
    except ValueError:
        last = [
            n for n in outcome.stderr.decode("utf-8", "replace").splitlines() if not n.startswith("done ")
        ]
        why = outcome.error or (last[-1][:300] if last else f"status {outcome.returncode}")
        raise ConvertError(f"the converter failed: {why}") from None
    if "converted" in answer:
        told = answer["converted"]
        return Converted(**{**told, "left_out": tuple(told["left_out"])})
    raise ConvertError(answer.get("refused") or f"it could not be written: {answer.get('failed')}")


def _follow(child: Child, progress: Progress) -> None:
    total = 0
    while child.running:
        for line in child.said().decode("ascii", "replace").splitlines():
            word, _, number = line.partition(" ")
            if word == "total" and number.isdigit():
                total = int(number)
            elif word == "done" and number.isdigit():
                progress(int(number), total)
        time.sleep(LOOK)
