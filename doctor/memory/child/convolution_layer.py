"""One convolution in numbers: what its kernels are chosen by, and the bytes of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

FEW = 4
"""Input channels below which a layer is a first one, of images or of sounds."""
FILL = 8
"""Channels are filled up to a multiple of this for kernels of two-byte numbers."""
WIDEST_POWER = 40
"""Channels per group up to which each group is filled up to a power of two."""


@dataclass(frozen=True)
class Layer:
    """One convolution: channels of input and result, places of both with the batch, bytes per number."""

    into: int
    out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    batch: int
    places_in: int
    places_out: int
    item: int
    groups: int
    transposed: bool

    @classmethod
    def of(cls, x: Any, w: Any, places: int, stride: Any, transposed: Any, groups: int) -> Layer:
        """From the operands as ATen gets them and the places of the result, times the batch."""
        into = int(x.shape[1])
        return cls(
            into,
            int(w.shape[1]) * groups if transposed else int(w.shape[0]),
            tuple(int(k) for k in w.shape[2:]),
            tuple(int(s) for s in stride),
            int(x.shape[0]),
            int(x.numel()) // into if into else 0,
            places,
            int(x.element_size()),
            groups,
            bool(transposed),
        )

    @property
    def size(self) -> int:
        """Weights of one filter of one channel."""
        return math.prod(self.kernel)

    @property
    def one(self) -> bool:
        """Whether a filter looks at one place."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is a first layer, of images or of sounds."""
        return not self.transposed and self.into < FEW

    @property
    def half(self) -> bool:
        """Whether numbers have two bytes."""
        return self.item == 2

    @property
    def weights(self) -> int:
        """Numbers of the weight."""
        return self.into * self.out * self.size // self.groups

    @property
    def products(self) -> int:
        """Multiplications of a forward."""
        return (self.places_in if self.transposed else self.places_out) * self.weights

    def x(self, fill: int = 1) -> int:
        """Bytes of the input with the channels of each group rounded up."""
        return self.places_in * self._filled(self.into, fill) * self.item

    def y(self, fill: int = 1) -> int:
        """Bytes of the result, as `x`."""
        return self.places_out * self._filled(self.out, fill) * self.item

    def w(self, fill: int = 1) -> int:
        """Bytes of the weight, filled both ways."""
        per_group = self._filled(self.into, fill) * self._filled(self.out, fill) // self.groups
        return per_group * self.size * self.item

    def _filled(self, channels: int, fill: int) -> int:
        each = channels // self.groups
        if self.groups > 1 and fill == FILL and each <= WIDEST_POWER:
            return self.groups * max(FILL, 1 << (each - 1).bit_length())
        return self.groups * -(-each // fill) * fill
