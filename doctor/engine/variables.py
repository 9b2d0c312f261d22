"""The variables a job will see: the environment, what the launch command assigns, and NCCL's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.stack import Torch

ENVIRONMENT = "the environment"
COMMAND = "the launch command"
REDACTED = "[redacted]"
FALSE = frozenset(("", "0", "off", "false", "no", "n", "f"))


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable with the place that sets it."""

    name: str
    value: str
    source: str = ENVIRONMENT
    """`ENVIRONMENT`, `COMMAND` or the path of the file that NCCL reads it from."""

    @property
    def redacted(self) -> bool:
        """Its value was removed from the recording: it may be named, never judged."""
        return REDACTED in self.value

    @property
    def on(self) -> bool:
        """Set to something that counts as true."""
        return not self.redacted and self.value.strip().lower() not in FALSE

    @property
    def number(self) -> int | None:
        """The whole value as an integer, decimal or 0x…, or None."""
        text = self.value.strip()
        return (
            int(text, 0) if re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]{1,16}|0|[1-9][0-9]{0,18})", text) else None
        )

    @property
    def where(self) -> str:
        """For a sentence: empty for the environment, else " (in …)"."""
        return "" if self.source == ENVIRONMENT else f" (in {self.source})"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every variable by name, the winning place only."""

    items: Mapping[str, Setting] = field(default_factory=dict)

    def get(self, name: str) -> Setting | None:
        """A variable whose value may be judged; None where it is unset or redacted."""
        setting = self.items.get(name)
        return None if setting is None or setting.redacted else setting

    def value(self, name: str) -> str | None:
        """Its value, or None."""
        setting = self.get(name)
        return None if setting is None else setting.value

    def on(self, name: str) -> bool:
        """Set to something that counts as true."""
        setting = self.get(name)
        return setting is not None and setting.on

    def off(self, name: str) -> bool:
        """Set, and to something that counts as false; an empty value is as good as none."""
        setting = self.get(name)
        return setting is not None and bool(setting.value.strip()) and not setting.on


def settings(facts: Facts) -> Settings:
    """What the job will see: the launch command's assignments, then the environment, then NCCL's files."""
    found: dict[str, Setting] = {}
    environment = facts.find(Environment)
    if environment is not None:
        found |= {n: Setting(n, v, f) for n, (v, f) in environment.nccl_conf.items()}
        found |= {n: Setting(n, v) for n, v in environment.variables.items()}
    launch = facts.find(Launch)
    if launch is not None:
        found |= {n: Setting(n, v, COMMAND) for n, v in launch.environment.items()}
    return Settings(found)


def version(text: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version, such as (2, 29, 7) of "2.29.7+cuda13.0"; None where there is none."""
    match = re.match(r"\s*v?([0-9]{1,6}(?:\.[0-9]{1,6}){0,3})", text or "")
    return tuple(int(n) for n in match.group(1).split(".")) if match else None


def nccl_version(facts: Facts) -> tuple[int, ...] | None:
    """The NCCL that is loaded, else the one torch was compiled against."""
    torch = facts.find(Torch)
    return None if torch is None else version(torch.nccl_runtime) or version(torch.nccl)


def torch_version(facts: Facts) -> tuple[int, ...] | None:
    """The version of torch without its local tag."""
    torch = facts.find(Torch)
    return None if torch is None else version(torch.version)
