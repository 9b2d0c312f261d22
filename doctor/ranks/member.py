"""What every rank, rank 0 included, does when rank 0 asks for a step of the common work."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.journal import Journal
from fsdp_doctor.ranks.listener import Listener
from fsdp_doctor.ranks.reach import Target, attempt
from fsdp_doctor.ranks.sentinel import Sentinel
from fsdp_doctor.ranks.wire import Message

STEP_SECONDS = 10.0
SENTINEL = re.compile(r"\.fsdp-doctor-[0-9a-f]{32}-[0-9]{1,7}\Z")
YOU_KNOW = ""
"""In a list of rank 0's addresses: the one at which the rank found it."""


@dataclass(frozen=True, slots=True)
class _Targets:
    targets: tuple[Target, ...]


class Member:
    """One rank's part in the steps. Close it in every case: it holds a listener and perhaps a file."""

    def __init__(self, context: Context, key: bytes, journal: Journal, checkpoint: str | None) -> None:
        """`checkpoint` is the folder of `--ckpt` on this host."""
        self._context, self._key, self._journal, self._checkpoint = context, key, journal, checkpoint
        self._sentinel: Sentinel | None = None
        self.leader_address: str | None = None
        self._listener: Listener | None = None
        try:
            self._listener = Listener(key, context.rank)
        except OSError:
            return
        self._listener.start()

    @property
    def port(self) -> int | None:
        """Where other ranks may try to reach this one."""
        return self._listener.port if self._listener else None

    def close(self) -> None:
        """Stop listening and remove the sentinel."""
        if self._listener is not None:
            self._listener.close()
        self._clear()

    def answer(self, message: Message) -> dict[str, object]:
        """Carry out one step; a step that is not known, or fails, is an answer too."""
        step = message.get("step")
        self._journal.mark(f"step {step}")
        given = message.get("seconds")
        seconds = (
            min(float(given), STEP_SECONDS) if isinstance(given, (int, float)) and given > 0 else STEP_SECONDS
        )
        until = time.monotonic() + seconds
        try:
            if step == "reach":
                return self._reach(message, seconds)
            if step == "sentinel":
                return self._write(message, until)
            if step == "see":
                return self._see(message, until)
        except (FormatError, ValueError) as error:
            return {"error": str(error)[:300]}
        if step == "clear":
            self._clear()
            return {}
        return {"error": f"no step {step!r}"[:100]}

    def _reach(self, message: Message, seconds: float) -> dict[str, object]:
        targets = from_json(_Targets, {"targets": message.get("targets")}).targets
        known = [_known(t, self.leader_address) for t in targets]
        return {"unreached": to_json(attempt(self._context.rank, known, self._key, seconds))}

    def _write(self, message: Message, until: float) -> dict[str, object]:
        name = message.get("name")
        if self._checkpoint is None:
            return {"error": "no checkpoint folder was named here"}
        if not isinstance(name, str) or not SENTINEL.match(name):
            return {"error": "no name for the file"}
        self._clear()
        self._sentinel = Sentinel(self._checkpoint, name)
        written = self._sentinel.written(until)
        return {"written": written, "error": self._sentinel.error}

    def _see(self, message: Message, until: float) -> dict[str, object]:
        names = message.get("names")
        if self._sentinel is None or not isinstance(names, list):
            return {"error": "nothing was written"}
        seen = self._sentinel.seen([n for n in names if isinstance(n, str)], until)
        return {"seen": None if seen is None else list(seen)}

    def _clear(self) -> None:
        if self._sentinel is not None:
            self._sentinel.close()
            self._sentinel = None


def _known(target: Target, leader: str | None) -> Target:
    addresses = (leader if a == YOU_KNOW else a for a in target.addresses)
    return Target(target.rank, tuple(dict.fromkeys(a for a in addresses if a)), target.port, target.kind)
