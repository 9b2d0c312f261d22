"""From rules to one answer: every rule is asked about every way, and the worst obstacle decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fsdp_doctor.ckpt.compat import damage, loaders, naming, optimizer, parting, rest
from fsdp_doctor.ckpt.compat.question import Question
from fsdp_doctor.ckpt.compat.ways import ways
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format, Layout
from fsdp_doctor.subjects.checkpoint_problem import Harm
from fsdp_doctor.subjects.load_target import LoadTarget
from fsdp_doctor.subjects.loading import Answer, Cause, Effect, Loading, Obstacle, Way

RULES: tuple[Callable[[Question], Iterator[Obstacle]], ...] = (
    damage.rules,
    loaders.rules,
    parting.rules,
    naming.rules,
    optimizer.rules,
    rest.rules,
)
ANSWERS = {
    Effect.FAILS: Answer.NO,
    Effect.HANGS: Answer.NO,
    Effect.WRONG: Answer.NO,
    Effect.UNKNOWN: Answer.UNKNOWN,
    Effect.LOST: Answer.YES_WARN,
    Effect.SAME_SETUP: Answer.YES_SAME_SETUP,
    Effect.CONVERT_API: Answer.YES_CONVERT_API,
    Effect.RESHARDS: Answer.YES_RESHARD,
    Effect.NOTE: Answer.YES,
}
ORDER = tuple(Answer)


def assess(index: CheckpointIndex, target: LoadTarget) -> Loading:
    """Judge every way. Where they differ the answer is `depends_on_api`, and `by_way` tells."""
    judged = ways(index, target)
    found = [(way, list(_obstacles(Question(index, target, *way)))) for way in judged]
    by_way = {way: _answer(obstacles) for way, obstacles in found}
    answers = set(by_way.values())
    return Loading(
        path=index.path,
        format=index.format,
        layout=index.layout,
        target=target,
        answer=answers.pop() if len(answers) == 1 else Answer.DEPENDS_ON_API,
        by_way=by_way,
        obstacles=tuple(_joined(o for _, obstacles in found for o in obstacles)),
        saved_on=index.world.size,
        natural=target.api is None and target.load_api is None,
        unread=_reason(index),
    )


def _obstacles(question: Question) -> Iterator[Obstacle]:
    """Of one way. What cannot be read at all needs no further rule."""
    found = list(damage.rules(question))
    yield from found
    if _reason(question.index):
        return
    for rule in RULES[1:]:
        yield from rule(question)


def _reason(index: CheckpointIndex) -> str:
    """Why nothing is known of its tensors; "" where they are."""
    framework = index.layout in (Layout.DEEPSPEED, Layout.MEGATRON)
    broken = [p for p in index.problems if p.harm in (Harm.BROKEN, Harm.UNSAFE)]
    if index.format is Format.UNKNOWN and not framework:
        return broken[0].detail if broken else "nothing of it is known as a checkpoint"
    return broken[0].detail if broken and not index.tensors else ""


def _answer(obstacles: Iterable[Obstacle]) -> Answer:
    return min((ANSWERS[o.effect] for o in obstacles), key=ORDER.index, default=Answer.YES)


def _joined(obstacles: Iterable[Obstacle]) -> Iterator[Obstacle]:
    """Each once, with all the ways that it concerns; the worst first."""
    ways_of: dict[Obstacle, frozenset[Way]] = {}
    for obstacle in obstacles:
        bare = replace(obstacle, ways=frozenset())
        ways_of[bare] = ways_of.get(bare, frozenset()) | obstacle.ways
    effects = tuple(Effect)
    for bare in sorted(ways_of, key=lambda o: (o.cause is not Cause.UNSAFE, effects.index(o.effect))):
        yield replace(bare, ways=ways_of[bare])
