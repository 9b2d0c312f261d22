"""Make text from machines harmless: nothing a host or a file is called reaches the terminal as a command."""

from __future__ import annotations

ASCII_FOR = {
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "≈": "~",
    "×": "x",
    "–": "-",
    "—": "-",
    "…": "...",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "µ": "u",
    "μ": "u",
    "°": " deg ",
    "·": "-",
    "±": "+/-",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
}
_TO_ASCII = str.maketrans(ASCII_FOR)


def _escape(char: str) -> str:
    number = ord(char)
    if char.isspace() and number > 0x20 and number not in (0x85, 0x2028, 0x2029):
        return " "
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def visible(text: str) -> str:
    """One line as it may be shown: control, bidirectional, unpaired and unassigned characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else _escape(c) for c in text)


def one_line(text: str) -> str:
    """Visible text on one line: line breaks become one space, blanks inside a line stay."""
    if not text.isprintable():
        text = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return visible(text)


def lines(text: str) -> tuple[str, ...]:
    """Visible text, line by line, without trailing blanks."""
    return tuple(visible(line).rstrip() for line in text.split("\n"))


def to_ascii(text: str) -> str:
    """Printable ASCII: typographic signs spelt out, every other character as an escape."""
    return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def unpaired(text: str) -> str:
    """The text with surrogates that have no partner (undecodable bytes of a name) as U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
