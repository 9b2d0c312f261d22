"""The readers, each with seeds that it reads and how it is called. Whatever comes in, none may raise."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import checkpoints, dumps, logs, others
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {**logs.TARGETS, **dumps.TARGETS, **checkpoints.TARGETS, **others.TARGETS}
