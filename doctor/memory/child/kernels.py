"""Memory that CUDA kernels take for the time of one call, and workspaces that library handles keep.

Each rule gives bytes for one call. Which rules were measured and which are assumed is said in
`fsdp_doctor.tables.substitutions`, which has an entry for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from . import attention_spaces, convolutions, distances, indices, norms, rows, transforms, used
from .course import Course, nbytes, stages
from .order import Packing
from .reductions import buffers

aten = torch.ops.aten
MIB = 1 << 20
Rule = Callable[..., "Sequence[Any] | Course"]


HALF = (torch.float16, torch.bfloat16)
SUMS = ("sum", "mean", "linalg_vector_norm", "norm", "prod")
CHOICES = ("amax", "amin", "any", "all", "max", "min")
"""Reductions that keep the type of what they reduce."""
ACCUMULATORS = {torch.int64: 8, torch.float64: 8, torch.bool: 1, torch.uint8: 1}


class Kernels:
    """The rules for one kind of GPU."""

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.sm = int(gpu.get("sm", 90))
        self.processors = int(gpu.get("processors", 132))
        self.lt_workspace = int(gpu.get("cublaslt_workspace", MIB))
        self._lt: set[bool] = set()
        packing = Packing(self.processors)
        of_aten: dict[str, Rule] = {
            "convolution": convolutions.forward,
            "convolution_backward": partial(convolutions.backward, self.processors),
            "_scaled_dot_product_flash_attention_backward": attention_spaces.flash_backward,
            "_scaled_dot_product_cudnn_attention": attention_spaces.cudnn_forward,
            "_scaled_dot_product_cudnn_attention_backward": attention_spaces.cudnn_backward,
            "_scaled_dot_product_efficient_attention_backward": attention_spaces.efficient_backward,
            "embedding": indices.embedding,
            "embedding_dense_backward": indices.embedding_backward,
            "_embedding_bag_backward": indices.bag_backward,
            "im2col": _im2col,
            "pow": _power,
            "_safe_softmax": rows.safe_softmax,
            "_softmax": rows.softmax,
            "_log_softmax": rows.softmax,
            "_softmax_backward_data": rows.softmax_backward,
            "logsumexp": rows.logsumexp,
            "cumsum": rows.cumsum,
            "native_layer_norm": norms.layer_norm,
            "native_layer_norm_backward": norms.layer_norm_backward,
            "native_batch_norm": norms.batch_norm,
            "native_batch_norm_backward": norms.batch_norm_backward,
            "native_group_norm": norms.group_norm,
            "native_group_norm_backward": norms.group_norm_backward,
            "_index_put_impl_": indices.put,
            "index_put_": indices.put,
            "index_put": indices.put,
            "index": indices.gathered,
            "mse_loss": self._loss,
            "smooth_l1_loss": self._loss,
            "huber_loss": self._huber,
            "binary_cross_entropy_with_logits": self._logits_loss,
            "topk": indices.topk,
            "sort": indices.sort,
            "_scaled_dot_product_efficient_attention": attention_spaces.efficient_forward,
            **transforms.RULES,
            **distances.RULES,
            **dict.fromkeys(SUMS, self._reduction),
            **dict.fromkeys(CHOICES, self._choice),
        }
        self.rules: dict[str, Rule] = {
            **{f"aten::{name}": rule for name, rule in of_aten.items()},
            "fsdp::split_with_sizes_copy": packing.copy_out,
            "fsdp::chunk_cat": packing.copy_in,
        }
        self.kept = {aten.addmm.default: self._of_bias}
        """What a library's handle keeps from the first call on."""
        self.larger = {
            aten.mse_loss.default: _elements,
            aten.smooth_l1_loss.default: _elements,
            aten.native_layer_norm.default: _statistics,
            aten.native_batch_norm.default: _statistics,
            aten.col2im.default: _col2im,
            aten.log_sigmoid_forward.default: _log_sigmoid,
            aten._embedding_bag.default: indices.bag_results,
            aten._scaled_dot_product_efficient_attention.default: attention_spaces.efficient_results,
        }
        """Results whose storage on a GPU is larger."""

    def workspaces(self, func: Any, args: Any, in_backward: bool) -> Iterator[tuple[int, str]]:
        """Workspaces that this call is the first to need; each thread has library handles of its own."""
        rule = self.kept.get(func)
        if rule is not None:
            yield from rule(args, in_backward)

    def _of_bias(self, args: Any, in_backward: bool) -> Iterator[tuple[int, str]]:
        if args[0].dim() == 1:
            used.note("aten::addmm")
            if in_backward not in self._lt:
                self._lt.add(in_backward)
                yield self.lt_workspace, "cublasLt workspace"

    def course(self, func: Any, args: Any, kwargs: Any) -> Sequence[int]:
        """What the call takes beside its results and gives back: `Course.steps`, empty for nothing."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return ()
        name = schema.name
        rule = self.rules.get(name)
        if rule is None:
            return ()
        used.note(name)
        found = rule(*args, **kwargs)
        if isinstance(found, Course):
            return found.steps
        return stages(*(found if found and isinstance(found[0], tuple) else (found,)))

    def results(self, func: Any, args: Any, kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
        """Results whose storage on a GPU is larger, with its bytes."""
        rule = self.larger.get(func)
        if rule is not None:
            used.note(func._schema.name)
            yield from rule(args, kwargs, out)

    def _loss(self, x: Any, target: Any, *args: Any, **kwargs: Any) -> Sequence[int]:
        """The elements' losses before they are reduced."""
        return (nbytes(x), *buffers(x, None, self.processors)) if _reduces((x, target, *args), kwargs) else ()

    def _huber(self, x: Any, target: Any, *args: Any, **kwargs: Any) -> Sequence[int] | Course:
        """The elements' losses, which are a block of their own."""
        if not _reduces((x, target, *args), kwargs):
            return ()
        return Course().take(nbytes(x)).results().take(*buffers(x, None, self.processors))

    def _logits_loss(
        self, x: Any, target: Any, weight: Any = None, more: Any = None, reduction: int = 1
    ) -> Course:
        """A log-sigmoid, and one less the target, which becomes the elements' losses (Loss.cpp)."""
        course = Course().take(nbytes(x))
        if not reduction:
            return course.results()
        course.take(nbytes(target)).results()
        return course.take(*buffers(x, None, self.processors))

    def _choice(self, x: Any, *args: Any, **kwargs: Any) -> Sequence[int]:
        dims = _dims(args, kwargs)
        return buffers(x, dims, self.processors, x.element_size()) if isinstance(x, torch.Tensor) else ()

    def _reduction(self, x: Any, *args: Any, **kwargs: Any) -> Sequence[int]:
        if not isinstance(x, torch.Tensor):
            return ()
        dims = _dims(args, kwargs)
        dtype = kwargs.get("dtype") or x.dtype
        if x.dtype in (torch.bool, torch.int32, torch.int16, torch.int8, torch.uint8) and dtype == x.dtype:
            dtype = torch.int64
        made = buffers(x, dims, self.processors, ACCUMULATORS.get(dtype, 4))
        widened = dtype != x.dtype and not (x.dtype in HALF and dtype == torch.float32)
        return (x.numel() * dtype.itemsize, *made) if widened else made


def _elements(args: Any, kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """Losses lay out their elements first and then make the same storage a scalar."""
    if _reduces(args, kwargs):
        yield out, nbytes(args[0])


def _statistics(_args: Any, _kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """Those of a layer norm or batch norm are float32, which the CPU keeps in the input's type."""
    yield from ((t, t.numel() * 4) for t in out[1:] if t.dtype in HALF)


def _log_sigmoid(_args: Any, _kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """The buffer that the CPU keeps for backward is empty."""
    yield out[1], 0


def _power(base: Any, *_: Any, **__: Any) -> Course:
    """A number to the power of a tensor goes to the GPU first (Pow.cpp)."""
    return Course().take(0 if isinstance(base, torch.Tensor) else 8).results()


def _im2col(x: Any, *_: Any, **__: Any) -> Course:
    """The result begins with its input's size and is made larger (Im2Col.cu)."""
    return Course().take(nbytes(x)).results()


def _col2im(args: Any, _kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """The result begins with its input's size, and keeps it when it is made smaller (Col2Im.cu)."""
    yield out, max(nbytes(args[0]), nbytes(out))


def _dims(args: Any, kwargs: Any) -> Any:
    """The dimensions that a call reduces; None for all."""
    dims: Any = next((a for a in args if isinstance(a, (list, tuple))), None)
    if dims is None:
        dims = kwargs.get("dim")
    if dims is None and args and type(args[0]) is int:
        dims = args[0]
    return [dims] if isinstance(dims, int) else dims


def _reduces(args: Any, kwargs: Any) -> bool:
    """Whether a loss is summed or averaged, by its argument `reduction`, which is the third."""
    return bool(kwargs.get("reduction", args[2] if len(args) > 2 else 1))
