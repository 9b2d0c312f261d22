"""Which rules of the table of substitutions were asked, by operator. A process has one replay."""

from __future__ import annotations

RULES: set[str] = set()
note = RULES.add
