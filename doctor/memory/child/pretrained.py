"""A transformers model by its folder with config.json: the module with its loss, and a batch for it."""

from __future__ import annotations

import inspect
import os
from typing import Any

AUTOMATIC = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
)
"""Tried one after the other where the configuration names no class with a loss."""
SAMPLES = 16_000
"""Of one second of sound."""
ONE_EACH = ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification")
"""Tasks that have one label for each input."""
WRITTEN = 64
"""Tokens of a text that belongs to sound or to a picture."""
_built: list[Any] = []
"""The model of this process, which says what a batch looks like."""


def model(folder: str, refused: type[Exception], **kwargs: Any) -> Any:
    """The module, without weights. Raises `refused(kind, text)` where transformers cannot build one."""
    try:
        import transformers
    except ImportError as error:
        raise refused(
            "model", f"hf:{folder} needs transformers: {error} (pip install fsdp-doctor[hf])"
        ) from None
    import torch

    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise refused("model", f"hf:{folder}: there is no config.json")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **kwargs)
    config.use_cache = False
    net = _net(transformers, config)
    if net is None:
        raise refused(
            "model", f"hf:{folder}: transformers has no model with a loss for {type(config).__name__}"
        )
    _built[:] = [net]

    class WithLoss(torch.nn.Module):  # type: ignore[misc]
        """Returns the loss for (input, labels); the input is what the model is about."""

        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net = net

        def forward(self, first: Any, labels: Any) -> Any:
            """The scalar loss."""
            return self.net(**{_input(self.net): first, "labels": labels}).loss

    return WithLoss(net)


def batch(device: Any, batch: int = 1, seq: int = 1024, vocab: int | None = None) -> Any:
    """Inputs and labels of `batch` sequences of `seq` tokens, pictures of the model's size or sounds."""
    import torch

    net = _built[0] if _built else None
    name = "input_ids" if net is None else _input(net)
    config = None if net is None else net.config
    if name == "pixel_values":
        part = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
        side = getattr(part, "image_size", 224)
        sides = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
        first = torch.zeros(batch, getattr(part, "num_channels", 3), *sides, device=device)
    elif name == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        first = torch.zeros(batch, getattr(config, "num_mel_bins", 80), frames, device=device)
    elif name == "input_values":
        first = torch.zeros(batch, SAMPLES, device=device)
    else:
        first = torch.zeros(batch, seq, dtype=torch.long, device=device)
    return first, _labels(net, first, name == "input_ids")


def _labels(net: Any, first: Any, text: bool) -> Any:
    import torch

    task = type(net).__name__.partition("For")[2]
    if task in ONE_EACH:
        one = getattr(net.config, "num_labels", 2) == 1
        kind = torch.float32 if one and task == ONE_EACH[0] else torch.long
        return torch.zeros(len(first), dtype=kind, device=first.device)
    if text:
        return first.clone()
    return torch.zeros(len(first), WRITTEN, dtype=torch.long, device=first.device)


def _net(transformers: Any, config: Any) -> Any:
    for name in getattr(config, "architectures", None) or ():
        kind = getattr(transformers, name, None)
        if kind is not None and "labels" in inspect.signature(kind.forward).parameters:
            return kind(config)
    for auto in AUTOMATIC:
        try:
            return getattr(transformers, auto).from_config(config)
        except ValueError:
            continue
    return None


def _input(net: Any) -> str:
    """What the model is about: token ids wherever it takes them."""
    names = inspect.signature(net.forward).parameters
    return "input_ids" if "input_ids" in names else str(net.main_input_name)
