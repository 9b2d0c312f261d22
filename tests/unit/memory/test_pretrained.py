"""Models by their configuration alone, each with a batch that its forward takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fsdp_doctor.memory.child import pretrained  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
}
NETS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "LlamaForCausalLM": ("LlamaConfig", {**SIZES, "vocab_size": 99}, (2, 16)),
    "RobertaForSequenceClassification": ("RobertaConfig", {**SIZES, "vocab_size": 99}, (2, 16)),
    "ViTForImageClassification": (
        "ViTConfig",
        {**SIZES, "image_size": 32, "num_channels": 1},
        (2, 1, 32, 32),
    ),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER, (2, 80, 3000)),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", {**SIZES, "mask_time_prob": 0.0}, (2, 16_000)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_family_takes_its_batch(name: str, tmp_path: Path) -> None:
    kind, fields, shape = NETS[name]
    config = getattr(transformers, kind)(**fields)
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    with torch.device("meta"), torch.no_grad():
        net = pretrained.model(str(tmp_path), LookupError)
        first, labels = pretrained.batch("meta", batch=2, seq=16)
        assert type(net.net).__name__ == name and tuple(first.shape) == shape and len(labels) == 2
        if name.endswith("Classification"):  # the others ask for values of masks and lengths
            assert net(first, labels).shape == ()


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"no config\.json"):
        pretrained.model(str(tmp_path), LookupError)
