"""The optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP050", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def no_optimizer(facts: Facts, options: Options) -> Iterator[Finding]:
    """No optimizer state.

    What: Whether there is optimizer state, and whether it is asked for.
    Why: Adam starts from zero moments: the loss jumps after the resume.
    Fix: Load the model alone, and warm the learning rate up again.
    Sources: Torch/distributed/checkpoint/default_planner.py.
    """
    yield from speak(facts, Cause.NO_OPTIMIZER)


@check("CKP051", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def integer_keys(facts: Facts, options: Options) -> Iterator[Finding]:
    """Optimizer state is keyed by integers.

    What: Whether state is named by parameter or by its place in the optimizer.
    Why: A fresh optimizer's state_dict() asks for no state, so that all of it is skipped without an
        error; and another order of parameters swaps the state of equal sizes.
    Fix: Save with get_state_dict; to load, step once without gradients before.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.INTEGER_KEYS)


@check("CKP052", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def optimizer_form(facts: Facts, options: Options) -> Iterator[Finding]:
    """Optimizer state was saved in another form.

    What: Flatten_optimizer_state_dict at save and at load.
    Why: Flattened state keeps groups by parameter, nested state by number: one does not find the other's
        keys.
    Fix: Pass the same StateDictOptions as at save.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.OPTIMIZER_FORM)


@check("CKP053", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def groups(facts: Facts, options: Options) -> Iterator[Finding]:
    """The number of parameter groups changed.

    What: Groups in the checkpoint against those of the optimizer that loads.
    Why: More groups fail on the first option; fewer drop the options of the others, such as weight decay,
        without a warning.
    Fix: Build the groups of the run that saved.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.GROUPS, needs="param_groups")


@check("CKP054", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def optimizer_kind(facts: Facts, options: Options) -> Iterator[Finding]:
    """Another kind of optimizer loads the state.

    What: The state that the optimizer keeps per parameter against what was saved.
    Why: AdamW's moments are no momentum buffer: the load fails on the first one.
    Fix: Build the optimizer that saved it, or load the model alone.
    Sources: Torch/optim; measured with torch 2.13.
    """
    yield from speak(facts, Cause.OPTIMIZER_KIND, needs="optimizer")


@check("CKP055", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def saved_lr(facts: Facts, options: Options) -> Iterator[Finding]:
    """The saved learning rate replaces the new one.

    What: Learning rates in the saved parameter groups.
    Why: Param_groups are restored as they were: a learning rate changed in the script has no effect.
    Fix: Set it again after loading.
    Sources: Torch/optim/optimizer.py (load_state_dict); measured with torch 2.13.
    """
    yield from speak(facts, Cause.SAVED_LR)
