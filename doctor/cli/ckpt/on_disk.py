"""What is wrong on disk, whoever loads it: problems of an index, judged by the checks that are about them."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime, timezone

from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.ckpt.compat.damage import CAUSES
from fsdp_doctor.cli.common import Settings
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import specs_below
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.findings import Result
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.load_target import LoadTarget
from fsdp_doctor.subjects.loading import Answer, Cause, Effect, Loading
from fsdp_doctor.subjects.scheduler import Identity

CAUSES_ON_DISK = frozenset({*CAUSES.values(), Cause.LOCAL_SLICES, Cause.OPTIMIZER_SLICES})
CODES_ON_DISK = tuple(f"CKP{n:03}" for n in range(1, 13))
WHOLE = (Effect.NOTE, Effect.LOST, Effect.RESHARDS)


def judge(index: CheckpointIndex, settings: Settings) -> tuple[Result, ...]:
    """The results of the selected checks."""
    loading = assess(index, LoadTarget())
    damage = tuple(o for o in loading.obstacles if o.cause in CAUSES_ON_DISK)
    whole = all(o.effect in WHOLE for o in damage)
    loading = Loading(
        path=index.path,
        format=index.format,
        layout=index.layout,
        target=loading.target,
        answer=Answer.YES if whole else Answer.NO,
        obstacles=damage,
        saved_on=index.world.size,
        unread=loading.unread,
    )
    facts = Facts({Loading: Known(loading), Identity: Known(Identity(platform.node(), None, None))})
    results = run_checks(checks_of(settings, CODES_ON_DISK), facts, Options())
    if not settings.config.suppressions:
        return results
    from fsdp_doctor.cli.selecting import known_suppressions

    return suppress(results, known_suppressions(settings), datetime.now(timezone.utc).date())


def checks_of(settings: Settings, codes: tuple[str, ...] | None = None) -> Iterable[CheckSpec]:
    """Those of some codes (None: all of checkpoints) that the selection leaves, in code order."""
    import fsdp_doctor.checks.ckpt

    ours = [c for c in specs_below(fsdp_doctor.checks.ckpt) if codes is None or c.code in codes]
    ours.sort(key=lambda c: c.code)
    if not (settings.select or settings.ignore):
        return ours
    from fsdp_doctor.cli.selecting import chosen

    wanted = chosen(settings)
    return [c for c in ours if wanted.includes(c.code)]


def unjudged(index: CheckpointIndex) -> tuple[str, ...]:
    """Lines for what was asked for and could not be read: a limit, a permission, this tool's own fault."""
    from fsdp_doctor.ckpt.compat.damage import UNKNOWN

    return tuple(
        f"{index.path}: {p.detail}" for p in index.problems if p.kind in UNKNOWN and not index.tensors
    )
