"""Lines of text with hanging indents, rendered by rich to a string; no markup is ever interpreted."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from rich.text import Text

from fsdp_doctor.report.escape import lines, one_line, to_ascii
from fsdp_doctor.report.style import Style

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 60
"""Columns below which labels stand in front of their text rather than in a column of their own."""
MINIMUM = 20


class Page:
    """Text that is built line by line. Whatever is added is escaped first."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.width = max(style.width, MINIMUM)
        self._buffer = io.StringIO()
        # Only colours need a console, and importing it takes longer than the rest of a page. Wrapping asks
        # it for nothing unless lines are justified.
        self._console = self._coloured() if style.colour else cast("Console", None)

    def _coloured(self) -> Console:
        from rich.console import Console

        return Console(
            file=self._buffer,
            width=self.width,
            force_terminal=True,
            color_system="standard",
            no_color=False,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            soft_wrap=True,
            _environ={},
        )

    def paragraph(self, parts: Iterable[tuple[str, str]], *, first: str = "", hang: int = 0) -> None:
        """Wrap (text, rich style) parts after `first`, which is at most `hang` columns; later lines hang."""
        body = Text()
        for said, style in parts:
            body.append(self.safe(said), style)
        rows = body.wrap(self._console, max(self.width - hang, MINIMUM // 2), overflow="fold")
        for number, row in enumerate(rows):
            row.rstrip()
            self._print(Text(first if number == 0 else " " * hang) + row)

    def labelled(self, label: str, text: str, style: str = "") -> None:
        """A label and its text: in two columns, or one after the other where it is narrow."""
        if not text:
            return
        if self.width < NARROW:
            self.paragraph([(f"{label}: ", "bold"), (text, style)], first="  ", hang=4)
        else:
            self.paragraph([(text, style)], first=f"    {label}".ljust(14), hang=14)

    def command(self, command: str) -> None:
        """A command that can be pasted: broken only between words, with a backslash."""
        indent = 4 if self.width < NARROW else 14
        for line in lines(command):
            rows = _break_command(self.safe(line), self.width - indent - 2)
            for number, row in enumerate(rows):
                self._print(Text(" " * indent + ("$ " if number == 0 else "  ")) + Text(row, "cyan"))

    def raw_lines(self, text: str, indent: int) -> None:
        """Quoted text, line by line."""
        for line in lines(text):
            self.paragraph([(line, "dim")], first=" " * indent, hang=indent)

    def blank(self) -> None:
        """An empty line."""
        self._buffer.write("\n")

    def safe(self, text: str) -> str:
        """Text without anything that a terminal would act on, in ASCII where the style asks for it."""
        said = one_line(text) if not text.isprintable() else text
        return to_ascii(said) if self.style.ascii else said

    def text(self) -> str:
        """All lines so far."""
        return self._buffer.getvalue()

    def _print(self, line: Text) -> None:
        if self.style.colour:
            self._console.print(line, no_wrap=True, overflow="ignore", crop=False)
        else:
            self._buffer.write(line.plain + "\n")


def _break_command(line: str, room: int) -> list[str]:
    """Rows of at most `room` columns where quotes allow it; each but the last ends in a backslash."""
    if len(line) <= room:
        return [line]
    rows, current = [], ""
    for word in _words(line):
        if current and len(current) + 1 + len(word) > room - 2:
            rows.append(current + " \\")
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*rows, current]


def _words(line: str) -> list[str]:
    """Split at single blanks outside of quotes; joined with blanks the words give the line again."""
    words, current, quote, escaped = [], "", "", False
    for char in line:
        if char == " " and not quote and not escaped:
            words.append(current)
            current = ""
            continue
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        current += char
    return [*words, current]
