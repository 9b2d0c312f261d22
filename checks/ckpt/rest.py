"""What else a run resumes from."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP060", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def scheduler(facts: Facts, options: Options) -> Iterator[Finding]:
    """A scheduler made before loading asks for initial_lr.

    What: Initial_lr in the saved groups, where a scheduler is made before the optimizer's state is
        loaded.
    Why: A learning-rate scheduler adds initial_lr to the groups; a checkpoint of a run without one has no
        such key and the load fails.
    Fix: Make the scheduler after loading.
    Sources: Torch/optim/lr_scheduler.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.SCHEDULER, needs="scheduler")


@check("CKP061", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def rank_objects(facts: Facts, options: Options) -> Iterator[Finding]:
    """Objects of single ranks share a key.

    What: Random states, samplers and data loaders without a rank in their key, saved by several ranks.
    Why: DCP keeps one value per key, and which rank's differs from key to key: ranks resume with each
        other's random state.
    Fix: Put the rank into the key.
    Sources: Torch/distributed/checkpoint/default_planner.py (dedup_save_plans); measured with torch 2.13.
    """
    yield from speak(facts, Cause.RANK_OBJECTS)


@check("CKP062", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def dataloader(facts: Facts, options: Options) -> Iterator[Finding]:
    """Data loader positions are kept per rank.

    What: Keys such as dataloader.dp_rank_3 against the ranks that load.
    Why: Fewer ranks drop positions without a warning, so that data are seen twice or never; more ranks
        fail with `Missing key`.
    Fix: Keep the data-parallel degree, or leave the data loader out and skip ahead.
    Sources: Torchtitan#811, torchtitan checkpoint docs; measured with torch 2.13.
    """
    yield from speak(facts, Cause.DATALOADER, needs="world_size")


@check("CKP063", Row.WRONG, needs=(Loading,), tags=("checkpoint",))
def random_states(facts: Facts, options: Options) -> Iterator[Finding]:
    """Random states of some ranks are not there.

    What: Random_states_R.pkl and rng_state_R.pth against the ranks that load.
    Why: Accelerate restores neither random state nor step count of such a rank, with an info log only.
    Fix: Resume on as many ranks as saved it.
    Sources: Accelerate/checkpointing.py (load_accelerator_state).
    """
    yield from speak(facts, Cause.RNG, needs="world_size")
