"""Packages that are built for one torch release, and how their versions or tags tell which."""

from __future__ import annotations

import re

from fsdp_doctor.tables.versions import Version, local_tag, parse

CHECKED_ON = "2026-12-02"

AUDIO_DECOUPLED: Version = (2, 11)
"""torchaudio from this release on asks for its own torch release or any newer one (its metadata)."""
VISION_OFFSET = 15
"""torchvision 0.N is built for torch 2.(N - 15): 0.15 for 2.0 up to 0.29 for 2.14."""
CUDA_TAGGED = ("torchvision", "torchaudio", "xformers", "fbgemm-gpu")
"""Distributions whose local tag names the CUDA of the torch that they are built for."""

_FOR_TORCH = re.compile(r"(?:cu([0-9]{2,3})_?)?torch([0-9]+\.[0-9]+)")


def wants_torch(name: str, version: str) -> Version | None:
    """The torch (major, minor) that torchvision or torchaudio is built for; None where others do too."""
    numbers = parse(version)
    if numbers is None or len(numbers) < 2:
        return None
    if name == "torchvision" and numbers[0] == 0 and numbers[1] >= VISION_OFFSET:
        return (2, numbers[1] - VISION_OFFSET)
    if name == "torchaudio" and (2, 0) <= numbers[:2] < AUDIO_DECOUPLED:
        return numbers[:2]
    return None


def tagged_torch(version: str) -> Version | None:
    """The torch of a tag such as +cu12torch2.6cxx11abiFALSE (flash-attn, causal-conv1d, mamba-ssm)."""
    found = _FOR_TORCH.search(local_tag(version) or "")
    return parse(found.group(2)) if found else None


def tagged_cuda(version: str) -> str | None:
    """The CUDA tag of a local version: cu130 of 0.28.0+cu130, cpu of 0.28.0+cpu."""
    tag = local_tag(version) or ""
    return tag if re.fullmatch(r"cu[0-9]{3}|cpu", tag) else None
