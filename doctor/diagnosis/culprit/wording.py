"""What the fields of a line say beyond the general words of its signature: title, reason, fixes and row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit import words_checkpoint, words_memory, words_outside, words_program
from fsdp_doctor.diagnosis.culprit.lines import CUDA_OOM
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import Words
from fsdp_doctor.subjects.incident import Hit

LONGEST_TITLE = 240

Particular = Callable[[View, Sequence[Hit], Hit, Words], Words]
_PARTICULARS: Mapping[str, Particular] = {
    **dict.fromkeys(CUDA_OOM, words_memory.cuda),
    "LOG136": words_outside.verbs,
    "LOG207": words_program.worker_died,
    "LOG211": words_program.worker,
    "LOG214": words_outside.scheduler,
    "LOG219": words_outside.interrupted,
    "LOG231": words_outside.xid,
    "LOG240": words_program.driver,
    "LOG298": words_program.exception,
    "LOG311": words_outside.oom_killed,
    "LOG312": words_outside.oom_killed,
    "LOG502": words_checkpoint.full,
    "LOG601": words_checkpoint.weights_only,
    "LOG603": words_checkpoint.damaged,
    "LOG605": words_checkpoint.names,
    "LOG608": words_checkpoint.missing_file,
    "LOG617": words_checkpoint.other_world,
    "LOG607": words_checkpoint.flat,
    "LOG716": words_program.imports,
}


def particulars(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """The words with what `first`, the most telling of `hits`, says itself."""
    particular = _PARTICULARS.get(first.code)
    if particular is not None:
        words = particular(view, hits, first, words)
    if len(words.title) > LONGEST_TITLE:
        words = replace(words, title=f"{words.title[:LONGEST_TITLE].rstrip(' .')}…")
    return words
