"""What a rank was doing, from stack frames and its own last words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.subjects.incident import Frame

SAVE, LOAD, EVAL, DATA, COMPILE, CLIP, OPTIMIZER, LOGITS, UNSHARD, WRAP, BACKWARD, INIT, LOG = (
    "save",
    "load",
    "eval",
    "data",
    "compile",
    "clip",
    "optimizer",
    "logits",
    "unshard",
    "wrap",
    "backward",
    "init",
    "log",
)
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern, re.I))
    for phase, pattern in (
        (
            SAVE,
            r"\bsav(?:es?|ed|ing)\b|save_(?:state|checkpoint|ckpt|model|weights|pretrained|full|sharded|dcp|distributed)|_save\b|state_dict\b(?!.*load)|(?:write|writing)_?\s?checkpoint|checkpointing to|dcp\.save",
        ),
        (
            LOAD,
            r"load_(?:state_dict|checkpoint|state|model)|dcp\.load|\bresum(?:e|ing)|from_pretrained|loading (?:checkpoint|model|weights)",
        ),
        (EVAL, r"\beval(?:uat\w*|_loop|_step|_batch)?\b|run_eval|validat(?:e|ion)|\bgenerat(?:e|ion|ing)\b"),
        (
            DATA,
            r"fetch\w*[ _]batch|next_batch|get_batch|_next_data|_try_get_data|_get_data|dataloader|data_loader|__getitem__|collate|load(?:ing)? (?:batch|data|sample)|fetching|\bdataset|prefetch|waiting for (?:data|batch)|tokeniz",
        ),
        (COMPILE, r"torch/_(?:dynamo|inductor)|compile_fx|recompil|torch\.compile|_compile\b"),
        (CLIP, r"clip_grad"),
        (OPTIMIZER, r"optim(?:izer)?\.step|torch/optim/|adam\w*\.py|_init_group|opt\.step"),
        (LOGITS, r"cross_entropy|lm_head\(|log_softmax|nll_loss|\blogits\b|CausalLMLoss|to_logits"),
        (UNSHARD, r"all_?gather|unshard|_pre_forward_unshard|_alloc_padded_unsharded"),
        (
            WRAP,
            r"fully_sharded_data_parallel\.py.*__init__|\bFSDP\(|fully_shard\(|\.cuda\(\)|prepare_model|\.to\(|_convert\b",
        ),
        (LOG, r"\blog(?:ging|_metrics|ger)?\b|wandb|tensorboard|metrics?\b"),
        (BACKWARD, r"backward"),
        (INIT, r"init_process_group|new_group|init_device_mesh"),
    )
)
DEEP = (CLIP, OPTIMIZER, LOGITS, UNSHARD)
"""Phases that only the innermost frames tell: further out, a name may speak of something else."""
INNERMOST = 6
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|<frozen|torch/|/opt/conda/lib|importlib")
NOT_A_PHASE = re.compile(r"\.train\(|epoch", re.I)


def of_text(text: str) -> str | None:
    """The phase that a line of the program speaks of."""
    return next((phase for phase, pattern in _WORDS if pattern.search(text)), None)


def of_frames(frames: Iterable[Frame]) -> str | None:
    """The phase that a stack is in: what its frames say in the order of their weight, whoever stands deeper."""
    stack = [f"{f.file} {f.function} {f.code}" for f in frames]
    for phase, pattern in _WORDS:
        if phase in (LOG, WRAP, BACKWARD, INIT):
            continue
        if any(pattern.search(line) for line in (stack[-INNERMOST:] if phase in DEEP else stack)):
            return phase
    return next((phase for phase, pattern in _WORDS if any(pattern.search(line) for line in stack)), None)


def own_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame outside libraries, else the innermost."""
    stack = list(frames)
    return next((f for f in reversed(stack) if not LIBRARY.search(f.file)), stack[-1] if stack else None)


def frame_words(frame: Frame | None) -> str:
    """`function (file:line)`, with the source line where it is known."""
    if frame is None:
        return ""
    place = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"{frame.function} ({place})" + (f": {frame.code}" if frame.code else "")
