"""A part of the truth is made and loaded again by torch; what it did must be what is written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.checkpoints import questions as asked
from fixtures.checkpoints.cells import cells
from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.ckpt.model import ModelError, ask
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.load_target import TargetTensor

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
NETS = str(ROOT / "fixtures" / "checkpoints" / "nets.py") + ":factory"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torch_still_does_what_is_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fixtures.checkpoints", "again", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    truth = json.loads(asked.TRUTH.read_text(encoding="utf-8"))["cells"]
    assert len(found) >= 8
    assert {n: a["outcome"] for n, a in found.items()} == {n: truth[n]["outcome"] for n in found}
    # The doctor on the files that were made just now, and with torch's message of just now.
    for question in asked.questions():
        if question.cell.name not in found:
            continue
        damage = question.cell.damage
        path = (
            tmp_path
            / ("damaged" if damage else "")
            / (f"{question.cell.save}.{damage}" if damage else question.cell.save)
        )
        fresh = replace(question, message=str(found[question.cell.name].get("message", "")))
        assert not asked.disagreement(fresh, assess(read_here(str(path)), question.target))


def test_cells_that_are_repeated_are_of_every_outcome() -> None:
    truth = json.loads(asked.TRUTH.read_text(encoding="utf-8"))["cells"]
    assert {truth[c.name]["outcome"] for c in cells() if c.ci} >= {"right", "lost", "wrong", "error"}


def test_the_model_is_described_as_torch_builds_it() -> None:
    shape: dict[str, object] = {"layers": 3, "tied": True, "narrow": True, "vocab": 13}
    base = {"layers": 2, "vocab": 11, "tied": False, "narrow": False, "dtype": "float32", "frozen": False}
    built, told = ask(NETS, shape), asked.model({**base, **shape})
    assert built.tensors == told.tensors
    assert built.tied == told.tied
    assert set(told.modules) <= set(built.modules)


def test_a_transformers_configuration(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    built = ask(f"hf:{tmp_path}")
    assert TargetTensor("model.embed_tokens.weight", (32, 16), "float32") in built.tensors
    assert ("model.embed_tokens.weight", "lm_head.weight") in built.tied


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(): raise ValueError('no such size')", "no such size"),
        ("def other(): pass", "no function 'build'"),
        ("def build(): return 3", "no module"),
        ("import os\ndef build(): os._exit(3)", "exit status 3"),
    ],
)
def test_a_factory_that_cannot(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(text)
    with pytest.raises(ModelError, match=words):
        ask(f"{file}:build")


def test_a_factory_that_hangs_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("import time\ndef build(): time.sleep(600)")
    with pytest.raises(ModelError, match="no answer"):
        ask(f"{file}:build", deadline=5.0)
