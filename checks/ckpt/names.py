"""Names, sizes and dtypes of the checkpoint against the model's."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP040", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def prefix(facts: Facts, options: Options) -> Iterator[Finding]:
    """Names carry a prefix that the model has not.

    What: Prefixes of wrappers (`module.`, `_orig_mod.`) and of nesting (`model.`) on either side.
    Why: A strict load fails on the first name; a lenient one (strict=False, allow_partial_load) loads
        nothing at all and says nothing.
    Fix: Strip or add the named prefix, or save with get_model_state_dict, which takes wrappers' names
        out.
    Sources: Torch/distributed/checkpoint/state_dict.py (_get_fqns); measured with torch 2.13.
    """
    yield from speak(facts, Cause.PREFIX)


@check("CKP041", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def missing_keys(facts: Facts, options: Options) -> Iterator[Finding]:
    """The model has tensors that the checkpoint has not.

    What: Names that the model and its optimizer ask for.
    Why: More layers, a new head or a formerly frozen parameter: dcp.load fails, allow_partial_load and
        whole files leave fresh values without a warning.
    Fix: Build the model as at save, or load on purpose what is there and initialise the rest.
    Sources: Torch/distributed/checkpoint/default_planner.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.MISSING_KEYS, needs="model")


@check("CKP042", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def extra_keys(facts: Facts, options: Options) -> Iterator[Finding]:
    """The checkpoint has tensors that the model has not.

    What: Names in the checkpoint that nothing asks for.
    Why: Dcp.load leaves them out without a warning; whole files and files per rank fail with `Unexpected
        key(s)`.
    Fix: Build the model as at save, or pass strict=False.
    Sources: Torch/distributed/checkpoint/default_planner.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.EXTRA_KEYS, needs="model")


@check("CKP043", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def sizes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Tensors have other sizes than the model.

    What: The shape of each tensor that both have.
    Why: A resized vocabulary or another width fails, also with allow_partial_load.
    Fix: Build the model with the saved sizes, load, then resize.
    Sources: Torch/distributed/checkpoint/planner_helpers.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.SIZES, needs="model")


@check("CKP044", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def dtype(facts: Facts, options: Options) -> Iterator[Finding]:
    """Tensors are cast to another dtype.

    What: The dtype of each tensor that both have.
    Why: Dcp.load copies into what is there: float32 weights become bfloat16 without a warning, and so do
        the moments.
    Fix: Build the model in the dtype that was saved and use a mixed-precision policy.
    Sources: Torch/distributed/checkpoint/default_planner.py (commit_tensor); measured with torch 2.13.
    """
    yield from speak(facts, Cause.DTYPE, needs="model")


@check("CKP045", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def tied(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ties between parameters changed.

    What: Parameters that share their values now or did at save.
    Why: A tied parameter has one optimizer state: untied, the second one's is missing; tied, one is left
        over and torch asks for strict=False.
    Fix: Tie as at save.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.TIED, needs="model")
