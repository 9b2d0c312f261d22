"""A child that was asked something and prints one JSON value per line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

from fsdp_doctor.facts.source import Json
from fsdp_doctor.process import Outcome, start


class Asked:
    """A child and, once it is wanted, how it ended. The first to look waits for it."""

    def __init__(self, argv: tuple[str, ...], seconds: float) -> None:
        """`seconds` counts from now; a child that takes longer is ended."""
        self.argv = argv
        self._seconds = seconds
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._answers: dict[str, dict[str, Json]] | None = None
        self._child = start(argv)

    def outcome(self) -> Outcome:
        """How the child ended; waits for it up to its deadline."""
        with self._lock:
            if self._outcome is None:
                self._outcome = self._child.result(self._seconds)
            return self._outcome

    def answers(self, kind: str) -> dict[str, Json]:
        """Answers by name of the lines `[kind, name, answer]`, as far as they came."""
        if self._answers is None:
            found: dict[str, dict[str, Json]] = {}
            for part in lines(self.outcome()):
                if isinstance(part, list) and len(part) == 3:
                    found.setdefault(str(part[0]), {})[str(part[1])] = part[2]
            self._answers = found
        return self._answers.get(kind, {})

    def end(self) -> None:
        """End the child if it still runs."""
        self._child.__exit__(None, None, None)


def lines(outcome: Outcome) -> Iterator[Json]:
    """The values of the whole lines; a line that was cut is no answer."""
    for line in outcome.stdout.split(b"\n"):
        try:
            value: Json = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield value
