"""How a script ends by itself: what it says to `exit`, and where."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from ..fences import leave


def of_exit(error: SystemExit) -> dict[str, object]:
    """Status, words and place of `sys.exit`, `quit` and the like; an object that is no number is printed."""
    from .failure import place_of

    code = error.code
    number = code if isinstance(code, int) else int(code is not None)
    said = "" if code is None or isinstance(code, int) else str(code)
    return {"code": number, "said": said, "place": place_of(error)}


def heed(rehearsal: Any) -> None:
    """`os._exit` of the script ends the rehearsal with an answer; copies of the process may leave."""
    own = os.getpid()

    def exits(status: int = 0) -> NoReturn:
        from .notes import script_place

        if os.getpid() == own:
            rehearsal.finish("exit", code=int(status), said="", place=script_place())
        leave(status)

    os._exit = exits
