"""Which variables a command is started with: what its torch understands, and never over the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.tables.recorder_variables import TORCHRUN_VARIABLES, VARIABLES, RecorderVariable, Release

LOG_OPTIONS = ("--log-dir", "--log_dir", "--redirects", "-r", "--tee", "-t")
LOG_VARIABLES = ("PET_LOG_DIR", "PET_REDIRECTS", "PET_TEE")
TORCH_LAUNCHERS = ("torchrun", "accelerate")


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable and what becomes of it."""

    name: str
    value: str
    why: str
    kept: bool = False
    """The user set it (or another name of the same thing): `value` is the user's."""


def settings(
    torch: Release | None,
    launch: Launch | None,
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    local: str,
) -> tuple[Setting, ...]:
    """The settings for a command that starts in an environment of `variables`.

    `torch` is the installed release, None where it is not known: then the names of all releases are set,
    which cost nothing where nobody reads them. `folder` is the run's, `local` a short one on a local disk.
    """
    own = {**variables, **(launch.environment if launch is not None else {})}
    chosen = [v for v in VARIABLES if _reads(torch, v)]
    if _starts_torchrun(launch, words) and not _has_log_options(words, own):
        chosen += [v for v in TORCHRUN_VARIABLES if _reads(torch, v)]
    return tuple(_decided(chosen, own, folder, local))


def _decided(
    chosen: Sequence[RecorderVariable], own: Mapping[str, str], folder: str, local: str
) -> Iterator[Setting]:
    for variable in chosen:
        theirs = next((n for n in (variable.name, *variable.same_as) if n in own), None)
        if theirs == variable.name:
            yield Setting(variable.name, own[theirs], variable.why, kept=True)
        elif theirs is None:
            value = variable.value.replace("{run}", folder).replace("{local}", local)
            yield Setting(variable.name, value, variable.why)


def _reads(torch: Release | None, variable: RecorderVariable) -> bool:
    if variable.since is None or torch is None:
        return True
    return variable.since <= torch and (variable.until is None or torch <= variable.until)


def _starts_torchrun(launch: Launch | None, words: Sequence[str]) -> bool:
    """Whether torchrun reads its variables: as the launcher, or as what srun's tasks start."""
    if launch is not None and launch.launcher in TORCH_LAUNCHERS:
        return True
    return any(w == "torch.distributed.run" or w.rpartition("/")[2] == "torchrun" for w in words)


def _has_log_options(words: Sequence[str], own: Mapping[str, str]) -> bool:
    """Whether the user says where logs go. A script's options of the same name count too: rather too few."""
    return any(n in own for n in LOG_VARIABLES) or any(w.partition("=")[0] in LOG_OPTIONS for w in words)
