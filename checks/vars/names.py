"""Names that nothing reads: misspelt, of another library, renamed, removed or not yet there."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._spelling import nearest
from fsdp_doctor.checks.vars._values import about, says, unset
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Setting, Settings, nccl_version, settings, torch_version
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.stack import Torch
from fsdp_doctor.tables import nccl_variables as nccl
from fsdp_doctor.tables import torch_variables as torch

NCCL, TORCH = "NCCL_", "TORCH_"
PREFIX_SLIPS = ("NCLL_", "NCC_", "NCL_", "NCCCL_", "NNCCL_", "CNCL_")
"""Of the prefix itself; HCCL_, UCCL_, MCCL_ and the like are libraries of their own."""
ALL_TORCH = frozenset().union(*torch.FAMILIES.values())
EXACT = nccl.KNOWN | ALL_TORCH | torch.IMPORTANT | frozenset(torch.RENAMED)


def _rename(setting: Setting, name: str, text: str | None = None) -> Fix:
    value = "VALUE" if setting.redacted else setting.value
    said = text or f"Rename {setting.name} to {name}"
    if setting.source.startswith("/"):
        return Fix(f"{said} in {setting.source}")
    return Fix(said, f"unset {setting.name}; export {name}='{value}'" if "'" not in value else None)


def _ours(name: str) -> bool:
    return name.upper().startswith((NCCL, *PREFIX_SLIPS, *torch.FAMILIES))


def _known_nccl(name: str) -> bool:
    return name in nccl.KNOWN or name in torch.RENAMED or name.startswith(nccl.PLUGIN_PREFIXES)


@check("VAR007", Row.NCCL, needs=(Environment,), uses=(Launch, Torch), tags=("vars", "nccl"))
def name_is_misspelt(facts: Facts, options: Options) -> Iterator[Finding]:
    """A variable's name is misspelt, so that nothing reads it

    What: a name that begins like NCCL's or torch's variables, or is one slip away from a name that matters
        (MASTER_ADDR, OMP_NUM_THREADS, …), is none that NCCL, its plug-ins or torch read: misspelt, in small
        letters, with the wrong prefix, or a common invention such as NCCL_TIMEOUT. Names that are close to
        no known one are only mentioned: a newer version may know them.
    Why: the libraries take a variable by its exact name and say nothing of others. What was meant to be set
        is not: the interface is still chosen by NCCL, the timeout is still ten minutes.
    Fix: correct the name, or remove it.
    Sources: NCCL user guide, env.rst; names in the sources of NCCL 2.30, its plug-ins and torch 2.13.
    """
    variables = settings(facts)
    bad = False
    for name in sorted(variables.items):
        setting = variables.items[name]
        if name in EXACT or not name.isascii():
            continue
        found = _misspelt(setting)
        # Scripts keep a variable of their own beside the real one: MASTER_ADDR=$MASTER_ADDRESS.
        if found is None or (not _ours(name) and found[0] in variables.items):
            continue
        meant, text = found
        bad = True
        yield warn(
            f"{name}{setting.where} {text}",
            meant,
            subject=about(setting),
            fix=_rename(setting, meant) if meant in EXACT else unset(setting),
            confidence=Confidence.MEDIUM if "did you mean" in text else Confidence.HIGH,
        )
    strange = [n for n in sorted(variables.items) if _unknown(n)]
    for start in range(0, len(strange[:60]), 20):
        bad = True
        yield info(
            f"not known to these tables (NCCL {'.'.join(map(str, nccl.NEWEST))}, torch "
            f"{'.'.join(map(str, torch.NEWEST))}): {', '.join(strange[start : start + 20])}"
        )
    if not bad:
        mine = [n for n in variables.items if n.startswith((NCCL, *torch.FAMILIES))]
        yield ok(f"{len(mine)} variables of NCCL and torch, all known")


def _misspelt(setting: Setting) -> tuple[str, str] | None:
    """What was meant, and what to say about the name; None where it is right or simply unknown."""
    name = setting.name
    if name in nccl.NEVER_READ:
        return nccl.NEVER_READ[name], "is a name that no library reads"
    if name != name.upper():
        upper = name.upper()
        if upper in EXACT:
            return upper, f"is not read: names are case-sensitive, did you mean {upper}?"
        name = upper if upper.startswith((NCCL, "TORCH_NCCL_")) else name
    if name.startswith(NCCL):
        if _known_nccl(name):
            return None
        if name in torch.SWAPPED_ONLY_TORCH:
            return f"{TORCH}{name}", f"is not read: it is torch's, did you mean {TORCH}{name}?"
        meant = nearest(name, nccl.KNOWN - nccl.OTHER, NCCL)
        return None if meant is None else (meant, f"is not read by NCCL, did you mean {meant}?")
    for family, names in torch.FAMILIES.items():
        if name.startswith(family):
            rest = name.removeprefix(TORCH)
            if name in names:
                return None
            if family == "TORCH_NCCL_" and rest in nccl.KNOWN and rest not in torch.RENAMED:
                return rest, f"is not read: it is NCCL's own, did you mean {rest}?"
            meant = nearest(name, names, family)
            return None if meant is None else (meant, f"is not read by torch, did you mean {meant}?")
    slip = next((p for p in PREFIX_SLIPS if name.startswith(p)), None)
    if slip is not None and NCCL + name[len(slip) :] in nccl.KNOWN:
        meant = NCCL + name[len(slip) :]
        return meant, f"is not read by NCCL, did you mean {meant}?"
    if name in torch.NEVER_READ:
        return torch.NEVER_READ[name], "is a name that no library reads"
    if len(name) < 9 or name in torch.RELATED or name[-1:].isdigit():
        return None
    meant = nearest(name, torch.IMPORTANT, most=1 if len(name) < 14 else 2)
    if meant is None:
        return None
    return meant, f"is not read, did you mean {meant}?"


def _unknown(name: str) -> bool:
    """Of NCCL's or torch's families, in none of the tables, and near to no name in them."""
    if name in EXACT or not name.isascii() or _misspelt(Setting(name, "")) is not None:
        return False
    if name.startswith(NCCL):
        return not _known_nccl(name)
    return any(name.startswith(f) for f in torch.FAMILIES)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@check("VAR008", Row.NCCL, needs=(Environment,), uses=(Launch, Torch), tags=("vars", "nccl"))
def name_is_outdated(facts: Facts, options: Options) -> Iterator[Finding]:
    """A variable was renamed, removed or deprecated, or this version does not know it yet

    What: one of torch's variables with its name from before torch 2.2 (NCCL_BLOCKING_WAIT,
        NCCL_ASYNC_ERROR_HANDLING, …), a new name with an older torch, or a variable that the NCCL in use no
        longer reads, deprecates or does not yet read.
    Why: an old name warns on every rank and loses silently to the new one where both are set; what NCCL or
        torch do not read does nothing.
    Fix: use the name that this version reads.
    Sources: torch ProcessGroupNCCL.hpp (names with their predecessors), NCCL user guide, env.rst.
    """
    variables = settings(facts)
    bad = False
    for finding in (*_torch_names(facts, variables), *_nccl_names(facts, variables)):
        bad = True
        yield finding
    if not bad:
        yield ok("no outdated name")


def _torch_names(facts: Facts, variables: Settings) -> Iterator[Finding]:
    version = torch_version(facts)
    old_torch = version is not None and version[:2] < torch.RENAMED_SINCE
    for old, new in torch.RENAMED.items():
        setting = variables.items.get(old)
        if setting is not None and not old_torch:
            both = new in variables.items
            yield warn(
                f"{old}{setting.where} is the name from before torch 2.2"
                + (f", and {new} is set too and wins" if both else ""),
                new,
                subject=about(setting),
                fix=unset(setting) if both else _rename(setting, new),
            )
        newer = variables.items.get(new)
        if newer is not None and old_torch and version is not None and old not in variables.items:
            yield warn(
                f"{new}{newer.where} with torch {_text(version)}, which does not read it",
                f"{old} before torch 2.2",
                subject=about(newer),
                fix=_rename(newer, old),
            )
    for name, (since, why) in torch.IGNORED_SINCE.items():
        setting = variables.items.get(name)
        if setting is not None and version is not None and version[:2] >= since:
            yield info(
                f"{name}{setting.where} does nothing since torch {_text(since)}: {why}",
                subject=about(setting),
            )
    recorder = variables.items.get("TORCH_FR_BUFFER_SIZE")
    if recorder is not None and version is not None and version[:2] < torch.FR_NAME_SINCE:
        yield info(
            f"TORCH_FR_BUFFER_SIZE with torch {_text(version)}: sure to be read "
            f"from {_text(torch.FR_NAME_SINCE)} on; every version reads TORCH_NCCL_TRACE_BUFFER_SIZE",
            subject=about(recorder),
        )


def _nccl_names(facts: Facts, variables: Settings) -> Iterator[Finding]:
    version = nccl_version(facts)
    for name, entry in sorted(nccl.DOCUMENTED.items()):
        setting = variables.items.get(name)
        if setting is None or name == "NCCL_CHECKS_DISABLE":
            continue
        instead = entry.instead or "unset"
        if entry.removed is not None:
            yield warn(
                f"{says(setting)}: NCCL does not read it since {_text(entry.removed)}",
                instead,
                subject=about(setting),
                fix=unset(setting, f"Use {instead}" if entry.instead else None),
            )
        elif version is not None and entry.since is not None and version < entry.since:
            yield info(
                f"{says(setting)}: NCCL {_text(version)} does not read it, {_text(entry.since)} and newer do",
                subject=about(setting),
            )
        elif entry.deprecated is None or name in nccl.TUNING:
            continue
        elif version is None or version >= entry.deprecated:
            yield info(
                f"{says(setting)}: deprecated since NCCL {_text(entry.deprecated)}",
                expected=instead,
                subject=about(setting),
            )
