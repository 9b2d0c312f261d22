"""The operators for which there are rules: each has an entry in the table of substitutions."""

from __future__ import annotations

from .choices import Choices
from .kernels import Kernels
from .values import HANDLERS, sized

OF_TORCH = ("autocast", "ddp", "flatten_parameters", "gradient sums")
"""Parts of torch that are no operators (`casting`, `data_parallel`, `recurrent_weights`, `engine_sums`)."""


def operators() -> frozenset[str]:
    """As torch's dispatcher names them; parts of torch without `::`."""
    kernels = Kernels({})
    named = [*kernels.rules]
    named += [f"aten::{name.partition('.')[0]}" for name in Choices({}).kernels()]
    named += [func._schema.name for func in (*kernels.kept, *kernels.larger)]
    named += [func._schema.name for func, handler in HANDLERS.items() if sized(handler)]
    return frozenset((*named, *OF_TORCH))
