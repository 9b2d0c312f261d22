"""Which kernel cuDNN takes for a layer, as far as its workspace tells.

Its fast kernels want the channels last. Tensors that lie otherwise are copied, operands and result alike,
and channels that are too few are filled up. A weight's gradient is summed in parts where places are many and
weights are few. The limits follow 4,700 measured convolutions (H200, cuDNN 9.19), most of them drawn at
random; another version may take other kernels.
"""

from __future__ import annotations

from .convolution_layer import FEW, FILL, Layer

MIB = 1 << 20
BESIDE = 16
"""Bytes beside the copies in a workspace."""
SHORT_SUM, SHORT_SUM_WIDE, LARGE_LAYER = 98, 186, 160_000_000
"""Products per result, and in all, below which a layer is computed as it lies."""
LONG_GROUPS = 5_000
"""Products per result above which a grouped layer is computed as it lies."""
WIDE_RESULT, LONG_INPUT = 35_280, 3 * MIB
"""Results per place of the input, and bytes of it, from which a large kernel is computed as it lies."""
MOST_IN_PARTS = 15 * MIB + MIB * 3 // 4
FIXED_PARTS = 15 * MIB // 4
MOST_WIDE_PARTS = 10095744
FEW_PLACES, MANY_PLACES = 1 << 14, 1 << 18
PARTS_OF_ONE = 9 * MIB // 5
TILE = 128
PLACES_OF_ONE = 1 << 12
"""Places up to which a kernel of one weight per channel has its operands copied."""


def forward(layer: Layer) -> int:
    """Bytes of the workspace."""
    found = _forward_half(layer) if layer.half else _forward_wide(layer)
    return found + BESIDE if found else 0


def _forward_half(layer: Layer) -> int:
    per_result = layer.into // layer.groups * layer.size
    if layer.one:
        if max(layer.stride) > 1:
            return layer.x() + layer.y() if layer.into >= 3 * FILL else 0
        return layer.x() + layer.y() if layer.places_in <= PLACES_OF_ONE and len(layer.kernel) < 3 else 0
    if layer.first:
        if layer.kernel == layer.stride and len(layer.kernel) > 2:
            return 0
        copies = layer.w() > 18 * 1024 and layer.w() * 5 <= layer.x()
        return layer.x(FILL) + layer.y() + layer.w(FILL) if copies else 0
    if layer.groups > 1:
        each = layer.into // layer.groups
        long = per_result > LONG_GROUPS and max(layer.into, layer.out) <= 224 * layer.groups
        return 0 if each < FEW or long else layer.x(FILL) + layer.y(FILL) + layer.w(FILL)
    if per_result <= SHORT_SUM and layer.products <= LARGE_LAYER:
        return 0
    if layer.out // layer.groups * layer.size > WIDE_RESULT and layer.x() > LONG_INPUT:
        return 0
    return layer.x(FILL) + layer.y(FILL) + layer.w(FILL)


def _forward_wide(layer: Layer) -> int:
    per_result = layer.into // layer.groups * layer.size
    if layer.one:
        if max(layer.stride) > 1:
            return layer.x() + layer.y() if min(layer.into, layer.out) >= 64 else 0
        return 0
    if layer.first and len(layer.kernel) == 3 and layer.kernel == layer.stride:
        return layer.x(FEW) + layer.w(FEW)
    if per_result <= SHORT_SUM:
        return 0
    kept = layer.out == 64 and max(layer.kernel) <= 3 and not layer.transposed
    made = 0 if kept else layer.y()
    if per_result <= SHORT_SUM_WIDE:
        made = made if layer.x() > 2 * LONG_INPUT else 0
    elif layer.y() <= LONG_INPUT:
        made = 0 if layer.into <= 352 and max(layer.into, layer.out) > 36 else made
    elif layer.out * layer.size > 21_344 and layer.out <= 352:
        made = 0
    return layer.x() + made + layer.w()


def backward_input(layer: Layer) -> int:
    """Bytes of the workspace for the gradient of the input."""
    fill = FILL if layer.half else FEW if layer.first else 1
    if layer.one:
        strided = max(layer.stride) > 1 and layer.into >= (3 * FILL if layer.half else 64)
        return layer.x() + layer.y() + BESIDE if strided else 0
    long = layer.half and layer.into // layer.groups * layer.size > LONG_GROUPS
    if layer.groups > 1 and long and min(layer.into, layer.out) <= 112 * layer.groups:
        return 0
    return layer.x(fill) + layer.y(fill) + layer.w(fill) + BESIDE


def backward_weight(layer: Layer, processors: int) -> int:
    """Bytes of the workspace for the gradient of the weight."""
    fill = FILL if layer.half else FEW if layer.first else 1
    copies = layer.x(fill) + layer.y(fill) + layer.w(fill) + BESIDE
    wide = layer.weights * 4
    if layer.one:
        return _weight_of_one(layer, copies)
    if layer.first and layer.kernel == layer.stride:
        deep = len(layer.kernel) == 3
        return copies + (
            8 * wide if layer.half and not deep else layer.w(fill) if deep and not layer.half else 0
        )
    if layer.first and not layer.half:
        small = len(layer.kernel) == 2 and max(layer.kernel) <= 3
        return 0 if small else copies
    return copies + _parts(layer, wide, processors)


def _weight_of_one(layer: Layer, copies: int) -> int:
    """A sum per sample, or over copies; in three dimensions, of few channels or places, over copies twice."""
    both = layer.x() + layer.y() + BESIDE
    strided, deep = max(layer.stride) > 1, len(layer.kernel) == 3
    samples = layer.batch * layer.weights * 4
    if strided and not (deep and layer.half):
        return both if layer.into >= (3 * FILL if layer.half else 64) else 0
    if not deep:
        return min(samples, both) if layer.half else samples
    if not strided and max(layer.into, layer.out) >= 160:
        return min(samples, both)
    if not layer.half:
        return copies + PARTS_OF_ONE if min(layer.into, layer.out) >= FILL else samples
    few = layer.into < 10 * FILL if strided else layer.places_out <= 8000 * layer.batch
    if layer.into <= 3 * FILL or few:
        twice = sum(size for n, size in ((layer.into, layer.x()), (layer.out, layer.y())) if n % FILL == 0)
        return copies + twice + (0 if strided and twice else PARTS_OF_ONE)
    return copies + PARTS_OF_ONE


def _parts(layer: Layer, wide: int, processors: int) -> int:
    """Bytes of fp32 sums that a weight's gradient is made of, where its tiles alone do not fill the GPU."""
    out, into = (layer.into, layer.out) if layer.transposed else (layer.out, layer.into)
    tiles = -(-out // TILE) * -(-(into // layer.groups * layer.size) // TILE)
    places, deep = layer.places_out, len(layer.kernel) == 3
    if layer.transposed and layer.half:
        return (
            min(7 * wide, MOST_IN_PARTS)
            if deep
            else min(91 * wide, 2 * MIB)
            if tiles <= 12 and places > 4 * FEW_PLACES
            else 0
        )
    if layer.transposed:
        return min(8 * wide, 4 * MIB)
    if layer.half and deep:
        small = max(layer.kernel) <= 3
        return (
            min(91 * wide, 2 * MIB if tiles <= 24 and places >= FEW_PLACES * 3 // 4 else 0)
            if small
            else min(200 * wide, 25 * MIB)
        )
    if layer.half:
        if tiles >= processors or places < FEW_PLACES:
            return 0
        return (
            FIXED_PARTS
            if tiles > processors // 4 + 3
            else min((7 if tiles > 18 else 13) * wide, MOST_IN_PARTS)
        )
    if deep and into < 64:
        return min(91 * wide, MOST_WIDE_PARTS) if places >= MANY_PLACES else 4 * wide
    if deep:
        return 16 * 110592 if into == 64 else 2 * wide if into < 256 else 0
    if tiles > processors // 2:
        return min(wide, FIXED_PARTS) if tiles < 288 and places >= FEW_PLACES else 0
    return min(processors // tiles * wide, MOST_WIDE_PARTS)
