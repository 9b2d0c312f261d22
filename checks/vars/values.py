"""Values that NCCL cannot read, or reads as something else, and its configuration files."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, leading_number, says
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, Settings, nccl_version, settings
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.stack import Torch
from fsdp_doctor.tables import nccl_variables as table

LISTS = frozenset(("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_SOCKET_FAMILY"))
"""Judged against the machine's own interfaces and adapters elsewhere."""
PATHS = ("NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_FILE", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE")
WORDS = (
    *PATHS,
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_ALGO",
    "NCCL_PROTO",
)
FUNCTIONS = frozenset(
    ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "sendrecv")
)


@check("VAR009", Row.NCCL, needs=(Environment,), uses=(Launch, Torch), tags=("vars", "nccl"))
def value_is_not_read(facts: Facts, options: Options) -> Iterator[Finding]:
    """A value is none that NCCL reads the way it was meant

    What: a word where NCCL wants a number (it then reads 0), a number outside the range, quotes or blanks
        that are part of the value, an unknown level in NCCL_DEBUG, NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL, an
        unknown algorithm or protocol, or a path with ~.
    Why: NCCL_P2P_DISABLE=true does not disable, NCCL_IB_TIMEOUT="22" is read as 0, an unknown level is
        ignored: all without a message. An unknown name in NCCL_ALGO or NCCL_PROTO ends the job since NCCL
        2.24.
    Fix: write the value as the user guide has it: numbers without quotes, levels in capitals.
    Sources: NCCL user guide, env.rst; NCCL 2.30 sources (param.cc, paths.cc, debug.cc).
    """
    variables = settings(facts)
    bad = False
    for name in sorted(variables.items):
        setting = variables.get(name)
        if setting is None or not name.startswith("NCCL_") or name in LISTS or not setting.value:
            continue
        for finding in _judge(facts, setting):
            bad = True
            yield finding
    threads, sockets = (
        leading_number(variables.value(n) or "") for n in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    )
    if threads and sockets and threads * sockets > table.SOCKETS_MAX:
        bad = True
        yield warn(
            f"NCCL_SOCKET_NTHREADS={threads} times NCCL_NSOCKS_PERTHREAD={sockets} is {threads * sockets}",
            f"at most {table.SOCKETS_MAX}",
            subject=Subject(variable="NCCL_NSOCKS_PERTHREAD"),
            fix=Fix("Lower one of them"),
        )
    if not bad:
        yield ok("every value is one that NCCL reads")


def _judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    name, value, subject = setting.name, setting.value, about(setting)
    bare = value.strip().strip("\"'").strip()
    marked = value[:1] in "\"'" or value[-1:] in "\"'" or value != value.strip()
    if marked and (name in table.TOGGLES or name in table.NUMBERS or name in WORDS):
        yield warn(
            f"{name}={value!r}{setting.where}: quotes and blanks are part of the value to NCCL",
            bare or "a value",
            subject=subject,
            fix=Fix(f"Write {name}={bare} without quotes or blanks", f"export {name}={bare}"),
        )
        return
    if name in table.TOGGLES and leading_number(value) is None:
        yield warn(
            f"{says(setting)}: NCCL wants a number and reads this as 0",
            "0 or 1",
            subject=subject,
            fix=Fix(f"Set {name} to 0 or 1"),
        )
    elif name in table.NUMBERS:
        yield from _number(setting)
    elif name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        if value not in table.LEVELS and leading_number(value) is None:
            yield warn(
                f"{says(setting)}: not a level, and ignored",
                f"one of {', '.join(table.LEVELS)}, in capitals",
                subject=subject,
                fix=Fix(
                    f"Correct {name}",
                    f"export {name}={value.upper()}" if value.upper() in table.LEVELS else None,
                ),
            )
    elif name == "NCCL_DEBUG":
        if bare.upper() not in table.DEBUG_LEVELS:
            yield warn(
                f"{says(setting)}: not a level, so that NCCL stays silent",
                f"one of {', '.join(table.DEBUG_LEVELS)}",
                subject=subject,
                fix=Fix("Use WARN or INFO", "export NCCL_DEBUG=WARN"),
            )
    elif name == "NCCL_DEBUG_SUBSYS":
        unknown = [
            w
            for w in value.removeprefix("^").split(",")
            if w and w.strip().upper() not in table.DEBUG_SUBSYSTEMS
        ]
        if unknown:
            yield warn(
                f"{says(setting)}: {', '.join(unknown)} is no subsystem",
                f"some of {', '.join(sorted(table.DEBUG_SUBSYSTEMS))}",
                subject=subject,
                fix=Fix("Correct the list", "export NCCL_DEBUG_SUBSYS=INIT,NET,ENV"),
            )
    elif name in ("NCCL_ALGO", "NCCL_PROTO"):
        yield from _selection(facts, setting)
    elif name in PATHS and value.startswith("~"):
        yield warn(
            f"{says(setting)}: NCCL does not expand ~",
            "an absolute path",
            subject=subject,
            fix=Fix(
                "Write the path in full",
                f"export {name}=$HOME{value[1:]}" if value[1:2] in ("", "/") else None,
            ),
        )


def _number(setting: Setting) -> Iterator[Finding]:
    low, high = table.NUMBERS[setting.name]
    number = leading_number(setting.value)
    wanted = f"{low} to {high}" if high is not None else f"{low} or more"
    fix = Fix(f"Correct {setting.name}, or unset it", f"unset {setting.name}")
    if number is None:
        yield warn(
            f"{says(setting)}: NCCL wants a number and reads this as 0",
            wanted,
            subject=about(setting),
            fix=fix,
        )
    elif number < low or (high is not None and number > high):
        yield warn(f"{says(setting)}: out of range", wanted, subject=about(setting), fix=fix)
    elif setting.name == "NCCL_NTHREADS" and number % 32:
        yield warn(
            f"{says(setting)}: no multiple of 32", "64, 128, 256 or 512", subject=about(setting), fix=fix
        )


def _selection(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """NCCL_ALGO and NCCL_PROTO: functions, colons and semicolons since 2.24, one list before."""
    known = table.ALGORITHMS if setting.name == "NCCL_ALGO" else table.PROTOCOLS
    unknown: list[str] = []
    for part in setting.value.lower().split(";"):
        function, colon, words = part.rpartition(":")
        if colon and function.strip() not in FUNCTIONS:
            unknown.append(function.strip())
        unknown += [w for w in words.strip().removeprefix("^").split(",") if w.strip() not in known]
    if not unknown:
        return
    version = nccl_version(facts)
    strict = version is not None and version >= table.STRICT_SELECTION
    say = fail if strict else warn
    yield say(
        f"{says(setting)}: {', '.join(repr(u) for u in unknown[:6])} is not known"
        + ("; NCCL " + ".".join(map(str, version)) + " ends the job for it" if strict and version else ""),
        f"some of {', '.join(known)}",
        subject=about(setting),
        fix=Fix(f"Correct {setting.name}, or unset it", f"unset {setting.name}"),
        row=Row.START if strict else None,
    )


@check("VAR010", Row.NCCL, needs=(Environment,), uses=(Launch,), tags=("vars", "nccl"))
def nccl_file_is_wrong(facts: Facts, options: Options) -> Iterator[Finding]:
    """A line of nccl.conf sets nothing, or a file sets variables for every job

    What: /etc/nccl.conf, ~/.nccl.conf or the file of NCCL_CONF_FILE has a line whose name holds blanks or
        "export", which NCCL takes literally and so never finds; else the variables that the files set are
        listed.
    Why: NCCL puts these lines into its environment without a message. A leftover there changes every job of
        the machine and is in no launch script.
    Fix: write NAME=VALUE, without blanks, quotes or export; remove what is no longer meant.
    Sources: NCCL user guide, env.rst (configuration files); NCCL 2.30 sources (param.cc, setEnvFile).
    """
    conf = facts[Environment].nccl_conf
    wrong = {n: f for n, (_, f) in conf.items() if n != n.strip() or " " in n.strip()}
    for name, path in sorted(wrong.items()):
        plain = name.strip().removeprefix("export ").removeprefix("set ").strip()
        yield warn(
            f"{path} sets {name!r}, a name that NCCL never asks for",
            f"{plain}=VALUE",
            subject=Subject(variable=plain, path=path),
            fix=Fix(f"Write {plain}=VALUE at the start of the line in {path}"),
        )
    variables = settings(facts)
    listed = sorted(f"{_shown(variables, n, v)} ({f})" for n, (v, f) in conf.items() if n not in wrong)
    if listed:
        yield info(f"set by NCCL's files: {', '.join(listed[:20])}")
    elif not wrong:
        yield ok("no variable is set by NCCL's files")


def _shown(variables: Settings, name: str, value: str) -> str:
    shown = variables.items.get(name)
    beaten = shown is not None and not shown.source.startswith("/")
    return f"{name}={value[:80]}" + (" (overridden by the environment)" if beaten else "")
