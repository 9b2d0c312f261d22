"""How much of a step's time went into waiting for data, by a line that prints both."""

from __future__ import annotations

import re

_LOADING = r"(?:load(?:ing|er)?|wait(?:ing)?|fetch(?:ing)?)"
_VALUE = (
    r"(?:\s?\((?P<paren>ms|s|sec|seconds)\)|_(?P<suffix>ms))?[\"']?\s{0,2}[:=]?\s{0,4}(?P<v>\d+(?:\.\d+)?)"
    r"(?:\s?(?P<unit>ms|seconds|secs?|s))?(?![\w.%])(?!\s?(?:[KMGT]i?B|%)(?!\w))"
)
_DATA = re.compile(
    rf"(?<![A-Za-z])(?:data(?:[ _-]?{_LOADING}){{0,2}}(?:[ _-]?(?:time|s|sec))?|time[ _]data|load[ _-]?time)"
    rf"(?![A-Za-z]){_VALUE}",
    re.I,
)
_TOTAL = re.compile(
    r"(?<![A-Za-z])(?:"
    r"(?:step|iter(?:ation)?|batch|end[ _-]?to[ _-]?end|train_step_timing)"
    r"(?:[ _-]?(?:time|took|duration))?(?:[ _]in)?"
    r"|(?<![A-Za-z] )(?<!_)time(?:[ _]?(?:/|per)[ _]?(?:step|iter(?:ation)?|it|batch))?"
    r"|step[ _]s|elapsed time per iteration)"
    rf"(?![A-Za-z]){_VALUE}",
    re.I,
)
_PERCENT = re.compile(
    rf"\bdata[ _-]?{_LOADING}(?:[ _-]?time)?\s?\(%\)[\"']?\s?[:=]?\s{{0,4}}(?P<v>\d+(?:\.\d+)?)", re.I
)
ROUNDING = 1.02


def data_share(text: str) -> float | None:
    """From 0 to 1; None where the line does not tell both times."""
    if "data" not in text and "Data" not in text and "load" not in text:
        return None
    if percent := _PERCENT.search(text):
        share = float(percent["v"]) / 100
        return min(share, 1.0) if share <= ROUNDING else None
    data = _timed(_DATA, text)
    if data is None:
        return None
    # "data time" ends like "time": what is taken is not looked at again.
    total = _timed(_TOTAL, f"{text[: data.start()]}| {text[data.end() :]}")
    if total is None:
        return None
    units = [_unit(m) for m in (data, total)]
    part, whole = (
        float(m["v"]) / (1000 if (own or other) == "ms" else 1)
        for m, own, other in ((data, units[0], units[1]), (total, units[1], units[0]))
    )
    return min(part / whole, 1.0) if whole > 0 and part <= ROUNDING * whole else None


def _timed(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first match that is a time: with a unit or a fraction, and not the number of a step or a batch."""
    return next((m for m in pattern.finditer(text) if _unit(m) or "." in m["v"]), None)


def _unit(found: re.Match[str]) -> str:
    return str(found["unit"] or found["paren"] or found["suffix"] or "").lower()
