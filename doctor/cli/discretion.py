"""Keep secrets and texts without end out of reports.

Reports go to logs of CI and to colleagues, and quote what a user typed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from fsdp_doctor.facts.redact import Redactor
from fsdp_doctor.findings import Evidence, Report, Result

LIMIT = 8000
"""Characters of one text of a report: a machine may be called anything, and nobody reads further."""
COMMAND = "command"
"""Key of a command line in a report's data: its words belong together, as in `--token VALUE`."""


def discreet(report: Report) -> Report:
    """The report with what looks like a secret, or stands under the name of one, replaced.

    A secret of this process's environment is replaced wherever it stands.
    """
    keeper = _Keeper()
    return replace(
        report,
        results=tuple(keeper.result(r) for r in report.results),
        unjudged=tuple(keeper.text(u) for u in report.unjudged),
        data={k: keeper.value(k, v) for k, v in report.data.items()},
    )


class _Keeper:
    def __init__(self) -> None:
        self._redactor = Redactor()
        self._redactor.env(os.environ)

    def text(self, text: str) -> str:
        if not text:
            return text
        if len(text) > LIMIT:
            text = f"{text[:LIMIT]}… ({len(text)} characters)"
        raw = self._redactor.text(text).encode("utf-8", "surrogatepass")
        return self._redactor.again(raw).decode("utf-8", "surrogatepass")

    def result(self, result: Result) -> Result:
        fix = result.fix
        named = {n: self._maybe(getattr(result.subject, n)) for n in ("device", "path", "file")}
        return replace(
            result,
            subject=replace(result.subject, **named),  # type: ignore[arg-type]
            found=self.text(result.found),
            expected=self.text(result.expected),
            fix=fix and replace(fix, text=self.text(fix.text), command=self._maybe(fix.command)),
            evidence=tuple(Evidence(e.source, self.text(e.text)) for e in result.evidence),
        )

    def value(self, key: str, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {k: self.value(str(k), v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            if key == COMMAND and all(isinstance(v, str) for v in value):
                return [self.text(word) for word in self._redactor.words(value)]
            return [self.value(key, v) for v in value]
        return value

    def _maybe(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)
