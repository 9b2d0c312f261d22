"""Models by their configuration alone, each with a batch that its forward takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fsdp_doctor.memory.child import main, pretrained  # noqa: E402

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


def _answered(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a child answers to a job, from a fork that has torch and transformers already."""
    path = folder / "job.json"
    path.write_text(json.dumps({"world_size": 8, "batch": None, "api": "fsdp2", **job}))
    pid = os.fork()
    if not pid:
        try:
            main.main(str(path))
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    answer: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return answer


def test_a_model_that_reads_its_mask_tells_its_order_and_its_work(tmp_path: Path) -> None:
    d, layers, vocab, tokens = 64, 3, 99, 1024
    more = {"hidden_size": d, "intermediate_size": 2 * d, "num_hidden_layers": layers, "vocab_size": vocab}
    config = transformers.LlamaConfig(**more, num_attention_heads=2)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    job = {"model": f"hf:{tmp_path}", "wrap": ["LlamaDecoderLayer"]}
    assert _answered({**job, "plan_only": True}, tmp_path)["order"] == [0, 1, 2, 3]
    products = 2 * tokens * (layers * (4 * d * d + 3 * d * 2 * d) + d * vocab) + layers * 4 * tokens**2 * d
    flops = _answered({**job, "work": "size"}, tmp_path)["flops"]
    assert products <= flops < 1.01 * products  # and the small ones of rotary positions
