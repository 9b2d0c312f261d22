"""Environment variables, and the files that NCCL reads further variables from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdp_doctor.facts.parse import fields, integer
from fsdp_doctor.facts.source import Source, text
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Known, Unknown

NCCL_SYSTEM_FILE = "/etc/nccl.conf"
VALUE_LIMIT = 1023
"""Characters that NCCL keeps of a name and of a value."""


def environment(source: Source) -> Known[Environment] | Unknown:
    """The rank's variables and those of NCCL's files."""
    answer = source.env()
    if isinstance(answer, Unknown):
        return answer
    conf: dict[str, tuple[str, str]] = {}
    for path in nccl_files(source, answer.value):
        raw = source.read(path)
        if not isinstance(raw, Unknown):
            for name, value in nccl_settings(raw.decode("utf-8", "replace")):
                conf.setdefault(name, (value, path))
    return Known(Environment(dict(answer.value), conf), answer.source or "the environment")


def nccl_files(source: Source, env: Mapping[str, str]) -> tuple[str, ...]:
    """Files in the order NCCL reads them; the first to name a variable wins.

    NCCL_CONF_FILE stands in for the file in the home folder, not for the system's.
    """
    own = env.get("NCCL_CONF_FILE")
    if own:
        return (own, NCCL_SYSTEM_FILE) if own.startswith("/") else (NCCL_SYSTEM_FILE,)
    home = _account_home(source) or env.get("HOME")
    return (f"{home.rstrip('/')}/.nccl.conf", NCCL_SYSTEM_FILE) if home else (NCCL_SYSTEM_FILE,)


def nccl_settings(content: str) -> Iterator[tuple[str, str]]:
    """Pairs of a file of NCCL: everything before the first "=" and everything after it, blanks too."""
    for line in content.split("\n"):
        name, mark, value = line.partition("=")
        if mark and name and not name.startswith("#"):
            yield name[:VALUE_LIMIT], value[:VALUE_LIMIT]


def _account_home(source: Source) -> str | None:
    """The home folder of the account: NCCL asks the account, not HOME."""
    status = fields(text(source, "/proc/self/status", 65536))
    uid = integer(next(iter(status.get("Uid", "").split()), None))
    if uid is None:
        return None
    for line in (text(source, "/etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) >= 7 and integer(parts[2]) == uid:
            return parts[5] or None
    return None
