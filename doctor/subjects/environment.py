"""Environment variables of the rank, and the files that NCCL reads variables from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Environment:
    """`variables` is the process environment; values that look like secrets are redacted in a recording."""

    variables: Mapping[str, str]
    nccl_conf: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Variable -> (value, file) from /etc/nccl.conf, ~/.nccl.conf or NCCL_CONF_FILE."""

    def get(self, name: str) -> str | None:
        """The value of a variable, or None; NCCL's files do not count."""
        return self.variables.get(name)

    def nccl(self, name: str) -> str | None:
        """The value as NCCL sees it: the environment first, then its files."""
        value = self.variables.get(name)
        if value is None and name in self.nccl_conf:
            return self.nccl_conf[name][0]
        return value
