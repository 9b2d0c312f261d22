"""Slices of single ranks that pose as whole tensors."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP011", Row.SAVE, needs=(Loading,), tags=("checkpoint",))
def local_slices(facts: Facts, options: Options) -> Iterator[Finding]:
    """Slices of single ranks were saved as if they were whole.

    What: Flat parameters beside ordinary names whose tensors have one dimension or none (LOCAL_STATE_DICT
        with use_orig_params), or whole dictionaries of sharded tensors under one key
        (flatten_state_dict=False).
    Why: Every rank writes its slice under the same key and one survives: the parameters under their names
        are lost.
    Fix: Load the flat parameters, which are whole, with use_orig_params=False on as many ranks; save with
        get_state_dict and dcp.save.
    Sources: Torch/distributed/fsdp/_state_dict_utils.py (_local_pre_state_dict_hook); measured with torch
        2.13.
    """
    yield from speak(facts, Cause.LOCAL_SLICES)


@check("CKP012", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def optimizer_slices(facts: Facts, options: Options) -> Iterator[Finding]:
    """FSDP1 optimizer state was saved as local slices.

    What: Optimizer state under integers whose sizes are those of no parameter.
    Why: FSDP1's optimizer.state_dict() holds this rank's slices; through DCP one rank's slice survives
        and loads into every rank without an error.
    Fix: Load the model alone; save the optimizer with get_state_dict or FSDP.optim_state_dict.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.OPTIMIZER_SLICES)
