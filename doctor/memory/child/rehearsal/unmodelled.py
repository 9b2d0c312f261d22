"""Parallelism that is refused, by the line that asks for it."""

from __future__ import annotations

from typing import Any

from .notes import Refusal


def refuse_unmodelled() -> None:
    """Parallelism whose ranks differ, or whose collectives change shapes: rank 0 stands for no other."""

    def refuse(owner: Any, name: str, what: str) -> None:
        if hasattr(owner, name):

            def refused(*_: Any, **__: Any) -> Any:
                raise Refusal("refused", f"{what} is not rehearsed: {name} was called")

            setattr(owner, name, refused)

    import torch.distributed.tensor.parallel as tp

    for owner in (tp, getattr(tp, "api", None)):
        if owner is not None:
            refuse(owner, "parallelize_module", "tensor parallelism")
    try:
        import torch.distributed.tensor.experimental as experimental

        refuse(experimental, "context_parallel", "context parallelism")
    except ImportError:
        pass
    try:
        import torch.distributed.pipelining as pipelining

        for name in ("PipelineStage", "pipeline"):
            refuse(pipelining, name, "pipeline parallelism")
    except ImportError:
        pass
