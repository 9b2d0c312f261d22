"""From a checkpoint and a target to results and figures; `ckpt check` and the preflight share it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import datetime, timezone

from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.cli.ckpt.on_disk import checks_of
from fsdp_doctor.cli.common import Settings
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.findings import Result
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.load_target import LoadTarget
from fsdp_doctor.subjects.loading import Answer, Effect, Loading, Obstacle
from fsdp_doctor.subjects.scheduler import Identity

WORDS = {
    Answer.YES: "yes",
    Answer.YES_RESHARD: "yes, resharding",
    Answer.YES_CONVERT_API: "yes, through the call that is named",
    Answer.YES_SAME_SETUP: "yes, with the same ranks, wrapping and options only",
    Answer.YES_WARN: "yes, but something is lost or changed",
    Answer.DEPENDS_ON_API: "that depends on the API",
    Answer.UNKNOWN: "cannot be told",
    Answer.NO: "no",
}


def judge_loading(
    index: CheckpointIndex, target: LoadTarget, settings: Settings
) -> tuple[Loading, tuple[Result, ...]]:
    """The judgement, and what the selected checks say of it."""
    loading = assess(index, target)
    facts = Facts({Loading: Known(loading), Identity: Known(Identity(platform.node(), None, None))})
    checks = [c for c in checks_of(settings) if Loading in c.needs]
    results = run_checks(checks, facts, Options())
    if not settings.config.suppressions:
        return loading, results
    from fsdp_doctor.cli.selecting import known_suppressions

    return loading, suppress(results, known_suppressions(settings), datetime.now(timezone.utc).date())


def unjudged(loading: Loading) -> tuple[str, ...]:
    """One line where no answer can be given."""
    if loading.answer is not Answer.UNKNOWN:
        return ()
    why = next((o.found for o in loading.obstacles if o.effect is Effect.UNKNOWN), loading.unread)
    return (f"{loading.path}: whether it loads cannot be told: {why}",)


def headline(loading: Loading) -> str:
    """The answer in a line."""
    target = loading.target
    ranks = (
        f" on {target.world_size} rank{'s' if target.world_size != 1 else ''}" if target.world_size else ""
    )
    saved = f", saved on {loading.saved_on}" if loading.saved_on else ""
    said = f"{loading.format.value}{saved}; loads{ranks}: {WORDS[loading.answer]}"
    if loading.answer is Answer.DEPENDS_ON_API:
        said += f" ({', '.join(f'{k}: {v}' for k, v in by_api(loading).items())})"
    return said


def by_api(loading: Loading) -> dict[str, str]:
    """Answers by API; one load API is judged at a time."""
    return {api.value: answer.value for (api, _), answer in loading.by_way.items()}


def figures(loading: Loading) -> dict[str, object]:
    """The command's `data`."""
    target = loading.target
    ways = list(loading.by_way)
    return {
        "verdict": loading.answer.value,
        "format": loading.format.value,
        "layout": loading.layout.value,
        "world_size": loading.saved_on,
        "by_api": by_api(loading),
        "load_api": ways[0][1].value if ways else None,
        "target_world_size": target.world_size,
        "world_size_from": target.world_source or None,
        "model": target.model.source if target.model is not None else None,
        "reasons": [_reason(o) for o in loading.obstacles],
        "messages": list(dict.fromkeys(o.message for o in loading.obstacles if o.message)),
        "conversion": next(_conversions(loading), None),
    }


def _reason(obstacle: Obstacle) -> dict[str, object]:
    return {
        "cause": obstacle.cause.value,
        "effect": obstacle.effect.value,
        "apis": sorted(api.value for api, _ in obstacle.ways),
        "found": obstacle.found,
        "expected": obstacle.expected or None,
        "message": obstacle.message or None,
        "fix": obstacle.fix or None,
        "command": obstacle.command,
        "tensor": obstacle.tensor,
        "path": obstacle.path,
    }


def _conversions(loading: Loading) -> Iterator[str]:
    """Commands that make something of it that loads, the worst obstacle's first."""
    for obstacle in loading.obstacles:
        if obstacle.command is not None and " convert " in obstacle.command:
            yield obstacle.command
