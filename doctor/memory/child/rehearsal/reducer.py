"""DistributedDataParallel's own reducer over a group that moves nothing.

It is C++ and reads a bucket's gradients out of the future of its all-reduce, which holds none here. A hook in
every reducer answers instead, in place as the built-in all-reduce does: what is allocated is the same.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

from .works import done

ONCE = "register_comm_hook or register_builtin_comm_hook can only be called once."


class Hook:
    """The communication hook of one reducer: the script's, else the mean over the ranks."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.chosen: Any = None
        self.state: Any = None

    def choose(self, state: Any, hook: Any) -> None:
        """What `register_comm_hook` asks for, which torch allows once."""
        if self.chosen is not None:
            raise RuntimeError(ONCE)
        self.chosen, self.state = hook, state

    def __call__(self, bucket: Any) -> Any:
        """The future of a bucket's gradients."""
        return self.mean(bucket) if self.chosen is None else self.chosen(self.state, bucket)

    @staticmethod
    def mean(bucket: Any) -> Any:
        """The mean over ranks that all hold what this one holds."""
        return done(bucket.buffer())


def install() -> None:
    """Give every reducer a hook. Holds for the whole process."""
    hooks: weakref.WeakKeyDictionary[Any, Hook] = weakref.WeakKeyDictionary()
    module: Any = dist
    real = module.Reducer
    register = module._register_comm_hook

    def reducer(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        group = kwargs["process_group"] if "process_group" in kwargs else args[3]
        hook = hooks[made] = Hook(group)
        register(made, None, lambda _, bucket: hook(bucket))
        return made

    def choose(made: Any, state: Any, hook: Any) -> None:
        hooks[made].choose(state, hook)

    def choose_builtin(made: Any, kind: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        half = kind == dist.BuiltinCommHookType.FP16_COMPRESS
        hook = default_hooks.fp16_compress_hook if half else default_hooks.allreduce_hook
        hooks[made].choose(hooks[made].group, hook)

    real._run_allreduce_hook = lambda _, bucket: Hook.mean(bucket)
    module.Reducer = reducer
    module._register_comm_hook, module._register_builtin_comm_hook = choose, choose_builtin
