"""What was measured of operators on a GPU takes the place of rules and assumptions in a replay.

A measured entry belongs to the text of one call (`calls.signature`). It says what the call takes for its own
time, what library handles keep after the first one, and which backend an attention takes; what is saved for
backward then comes from torch itself. Of a recurrent layer it says the workspaces forward and backward and,
as what is kept, the reserve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from . import used
from .calls import Calls
from .choices import Choices
from .course import stages
from .kernels import Kernels

aten = torch.ops.aten
ATTENTION = "aten::scaled_dot_product_attention"


class Calibration:
    """The measured entries of a job, and the calls that it makes."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.table: dict[str, dict[str, Any]] = dict(job.get("calibration") or {})
        self.calls = Calls(job.get("watch") or {})

    def find(self, func: Any, args: Any, kwargs: Any, grads: bool = False) -> dict[str, Any] | None:
        """Note a watched call; its entry where there is one."""
        if not self.calls.watched(func._schema.name):
            return None
        text = self.calls.note(func, args, kwargs, grads)
        return self.table.get(text) if text is not None else None

    def listed(self) -> dict[str, Any]:
        """For the result."""
        return self.calls.listed(self.table)


class CalibratedKernels(Kernels):
    """The rules, except where a call was measured."""

    def __init__(self, gpu: dict[str, Any], calibration: Calibration) -> None:
        super().__init__(gpu)
        self._calibration = calibration
        self._kept: dict[str, int] = {}
        """Bytes that stay after an operator's first call; 0 where they were handed out."""

    def workspaces(self, func: Any, args: Any, in_backward: bool) -> Iterator[tuple[int, str]]:
        """See `Kernels`. What a measured call keeps is there before the operator after it."""
        yield from super().workspaces(func, args, in_backward)
        for operator, size in self._kept.items():
            if size:
                self._kept[operator] = 0
                yield size, f"{operator} workspace"

    def course(self, func: Any, args: Any, kwargs: Any) -> Sequence[int]:
        """See `Kernels`."""
        entry = self._calibration.find(func, args, kwargs) if hasattr(func, "_schema") else None
        if entry is None:
            return super().course(func, args, kwargs)
        name = func._schema.name
        if name in self.rules:
            used.note(name)
        self._kept.setdefault(name, int(entry["kept"]))
        return stages(entry["during"])


class CalibratedChoices(Choices):
    """CUDA's selection, except where the kernel of a call was seen."""

    def __init__(self, gpu: dict[str, Any], calibration: Calibration) -> None:
        super().__init__(gpu)
        self._calibration = calibration
        self.recurrence.find = calibration.find

    def attention(self, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        """See `Choices`; the rules for arguments of the chosen backend stay its own."""
        entry = self._calibration.find(
            aten.scaled_dot_product_attention.default, (q, k, v, *args), kwargs, True
        )
        backend = entry["backend"] if entry is not None else None
        if backend == "math":
            return _math(q, k, v, *args, **kwargs)
        before = self.sm, self.cudnn_attention
        if backend is not None:
            self.cudnn_attention = backend == "cudnn"
            if backend == "efficient":
                self.sm = 75  # for which there is no flash attention
        try:
            return super().attention(q, k, v, *args, **kwargs)
        finally:
            self.sm, self.cudnn_attention = before


def _math(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
