"""What else a run resumes from: scheduler, random state, objects of single ranks, data loader."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.ckpt.compat.question import DCP, Question, some
from fsdp_doctor.subjects.checkpoint import Layout
from fsdp_doctor.subjects.checkpoint_problem import ProblemKind
from fsdp_doctor.subjects.checkpoint_state import Entry, Keying, Role
from fsdp_doctor.subjects.load_target import LoadApi
from fsdp_doctor.subjects.loading import Cause, Effect, Obstacle

PER_RANK_NAMES = re.compile(r"(^|[._/])(rng|random|seed|dataloader|data_loader|sampler)", re.IGNORECASE)
INITIAL_LR = "initial_lr"


def rules(question: Question) -> Iterator[Obstacle]:
    """Each of them."""
    yield from _scheduler(question)
    yield from _rank_objects(question)
    yield from _dataloader(question)
    yield from _rng(question)


def _scheduler(question: Question) -> Iterator[Obstacle]:
    """A scheduler adds initial_lr to the groups when it is made, and dcp.load then asks for it."""
    saved = question.index.optimizer
    if (
        question.target.scheduler is not True
        or not question.asks_optimizer
        or question.index.format not in DCP
    ):
        return
    known = [g for g in saved.groups if g.options]
    if saved.keying is not Keying.FQN or not known or any(INITIAL_LR in g.options for g in known):
        return
    yield question.obstacle(
        Cause.SCHEDULER,
        Effect.LOST if question.target.partial else Effect.FAILS,
        "param_groups without initial_lr: the run that saved had no learning-rate scheduler",
        "initial_lr, which a scheduler that is made before loading adds to what is asked for",
        message=f"Missing key in checkpoint state_dict: {saved.root or 'optim'}.param_groups.0.{INITIAL_LR}.",
        fix="Make the scheduler after loading the optimizer",
    )


def _rank_objects(question: Question) -> Iterator[Obstacle]:
    """Values that each rank has of its own, under one key: DCP keeps one, whichever."""
    if question.index.format not in DCP or question.load_api is LoadApi.PER_RANK:
        return
    writers = question.saved_on or len(question.index.world.writers)
    if writers < 2:
        return
    shared = [e for e in question.index.entries if _of_a_rank(e) and e.rank is None]
    if shared:
        yield question.obstacle(
            Cause.RANK_OBJECTS,
            Effect.LOST,
            f"{some(e.key for e in shared)}: {writers} ranks saved their own value under one key; one rank's "
            "survived, and another's may have under the next key",
            "a key per rank for what differs between ranks",
            fix='Save it under a key of the rank: {f"rng_{rank}": state}, and restore only a rank\'s own',
            examples=tuple(e.key for e in shared[:8]),
        )


def _of_a_rank(entry: Entry) -> bool:
    if entry.role in (Role.RNG, Role.DATALOADER):
        return not entry.key.endswith("world_size")
    return entry.role is Role.OTHER and bool(PER_RANK_NAMES.search(entry.key))


def _dataloader(question: Question) -> Iterator[Obstacle]:
    """A key per rank: fewer ranks drop some, more ranks ask for some that are not there."""
    held = sorted(
        e for e in {e.rank for e in question.index.entries if e.role is Role.DATALOADER} if e is not None
    )
    ranks, saved = question.ranks, question.saved_on
    if not held or ranks is None:
        return
    if question.index.format not in DCP and question.index.layout is not Layout.ACCELERATE:
        return
    count = held[-1] + 1
    if saved is not None and count != saved:  # data-parallel ranks are fewer: tensor or pipeline parallel
        if saved == ranks or saved % count:
            return
        ranks = max(ranks * count // saved, 1)
    key = next(e.key for e in question.index.entries if e.role is Role.DATALOADER and e.rank == held[0])
    if ranks < count:
        yield question.obstacle(
            Cause.DATALOADER,
            Effect.LOST,
            f"data loader positions of {count} ranks: those of ranks {ranks} to {held[-1]} are dropped "
            "without a "
            "warning; torchtitan refuses a changed dp_degree",
            f"{count} data-parallel ranks",
            message="AssertionError: dp_degree" if question.index.layout is Layout.TORCHTITAN else "",
            fix="Keep the number of data-parallel ranks, or leave the data loader out (torchtitan: "
            'checkpoint.exclude_from_loading = ["dataloader"]) and skip the data that was seen',
        )
    elif ranks > count:
        wanted = _renumbered(key, held[0], count)
        yield question.obstacle(
            Cause.DATALOADER,
            Effect.FAILS if question.index.format in DCP and not question.target.partial else Effect.LOST,
            f"data loader positions of {count} ranks, and {ranks} ask for theirs",
            f"{count} data-parallel ranks",
            message=f"Missing key in checkpoint state_dict: {wanted}",
            fix="Keep the number of data-parallel ranks, or leave the data loader out (torchtitan: "
            'checkpoint.exclude_from_loading = ["dataloader"]) and skip the data that was seen',
        )


def _renumbered(key: str, old: int, new: int) -> str:
    """The key as a rank that is not there asks for it."""
    head, found, tail = key.rpartition(str(old))
    return f"{head}{new}" if found and not tail.strip("0123456789") else f"{head}{new}{tail}"


def _rng(question: Question) -> Iterator[Obstacle]:
    """Random states in a file per rank beside the weights."""
    held = {e.rank for e in question.index.entries if e.role is Role.RNG and e.rank is not None}
    ranks = question.ranks
    if not held or ranks is None or question.load_api is LoadApi.PER_RANK:
        return
    absent = [r for r in range(ranks) if r not in held]
    told = [p for p in question.index.problems if p.path.startswith(("random_states", "rng_state"))]
    if absent and question.index.layout in (Layout.ACCELERATE, Layout.TRAINER):
        lost = "random state and step count" if question.index.layout is Layout.ACCELERATE else "random state"
        damaged = question.saved_on is None or absent[0] < question.saved_on
        if any(p.kind is ProblemKind.FILE_MISSING or p.kind is ProblemKind.RANK_MISSING for p in told):
            return
        yield question.obstacle(
            Cause.RNG,
            Effect.LOST if damaged else Effect.NOTE,
            f"random states of {len(held)} ranks: the {lost} of {some(f'rank {r}' for r in absent)} "
            f"{'is' if len(absent) == 1 else 'are'} not restored, and only an info log says so",
            f"a random state for each of {ranks} ranks",
            fix="Resume on as many ranks as saved it, or set seeds and step yourself",
        )
    elif len(held) > ranks:
        yield question.obstacle(
            Cause.RNG,
            Effect.NOTE,
            f"random states of {len(held)} ranks, of which {ranks} are used: dropout and shuffling go on "
            "differently",
            "",
        )
