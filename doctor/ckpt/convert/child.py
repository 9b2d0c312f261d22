"""The child that converts: isolated, limited in memory while it reads pickles.

Arguments: the folder that holds the package, and the order as JSON. Standard error gets a line `total N` or
`done N` for progress, standard output the answer as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict

TICK = 0.5
"""Seconds between lines about progress."""


class Lines:
    """Progress as lines, not too many of them."""

    def __init__(self) -> None:
        self._done, self._next, self._all = 0, 0.0, 0

    def total(self, count: int) -> None:
        """Bytes that will be written."""
        self._all = count

    def done(self, count: int) -> None:
        """Bytes that have been written since the last call."""
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TICK
            sys.stderr.write(f"total {self._all}\ndone {self._done}\n")
            sys.stderr.flush()


def main(argv: list[str]) -> int:
    """Convert, and write the answer to standard output."""
    root, text = argv
    sys.path.insert(0, root)
    from fsdp_doctor.ckpt import memory
    from fsdp_doctor.ckpt.convert.here import Order, convert
    from fsdp_doctor.ckpt.convert.model import ConvertError

    memory.enable()
    lines = Lines()
    answer: dict[str, object]
    try:
        answer = {"converted": asdict(convert(Order(**json.loads(text)), lines.total, lines.done))}
    except ConvertError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        answer = {"failed": f"{error.strerror or error}{named}"}
    except MemoryError:
        answer = {"refused": "reading a pickle of it takes more memory than it can need"}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)
