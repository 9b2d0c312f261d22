"""How a script ends by itself: what it says to `exit`, and where."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from ..fences import leave


def of_exit(error: SystemExit, rehearsal: Any) -> dict[str, object]:
    """Status, words and place of `sys.exit`, `quit` and the like; an object that is no number is printed.

    A script that gives up after a program which it started failed is not at fault.
    """
    from .failure import place_of

    code = error.code
    number = code if isinstance(code, int) else int(code is not None)
    said = "" if code is None or isinstance(code, int) else str(code)
    ended: dict[str, object] = {"code": number, "said": said, "place": place_of(error)}
    programs = rehearsal.programs
    blamed = programs.blamed(None) if programs is not None and number and not rehearsal.steps.done else None
    if blamed is not None:
        text = f"the script exited with status {number}" + (f" and says: {said[:200]}" if said else "")
        ended["problem"] = {"kind": "program", "text": f"{text}; {blamed[0]}", "place": ended["place"]}
    return ended


def exchanged(rehearsal: Any, words: str, place: str) -> None:
    """The script would replace its process by another program, of which nothing could be said."""
    text = f"the script replaces itself by `{words}`: rehearse that command"
    rehearsal.finish("refused", problem={"kind": "refused", "text": text, "place": place})


def heed(rehearsal: Any) -> None:
    """`os._exit` of the script ends the rehearsal with an answer; copies of the process may leave."""
    own = os.getpid()

    def exits(status: int = 0) -> NoReturn:
        from .notes import script_place

        if os.getpid() == own:
            rehearsal.finish("exit", code=int(status), said="", place=script_place())
        leave(status)

    os._exit = exits
