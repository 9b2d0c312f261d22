"""Words that users try as a command, and the command that does what they mean."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM = "fsdp-doctor"
PLAN = "dryrun --plan-only"
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("plan", "wrap", "wrap-plan", "units", "shard"), PLAN),
    **dict.fromkeys(("memory", "mem", "dry-run", "predict", "estimate", "fit", "fits", "size"), "dryrun"),
    "advise": "dryrun --advise",
    "compare": "dryrun --compare",
    "max-batch": "dryrun --max-batch",
    "max-seq": "dryrun --max-seq",
    "calibrate": "dryrun --calibrate",
    **dict.fromkeys(("rehearsal", "simulate"), "rehearse"),
    **dict.fromkeys(("bench", "benchmark", "bandwidth", "nccl-test", "nccl-tests"), "probe"),
    **dict.fromkeys(("diagnosis", "analyze", "analyse", "logs", "log", "why"), "diagnose"),
    **dict.fromkeys(("live", "attach", "hang"), "diagnose --live PID"),
    **dict.fromkeys(("checkpoint", "checkpoints"), "ckpt"),
    **dict.fromkeys(("inspect", "convert", "diff", "latest"), "ckpt {}"),
    "verify": "ckpt inspect --verify",
    **dict.fromkeys(("preflight", "verify-env", "env", "doctor"), "check"),
    "fix": "check --fix",
    **dict.fromkeys(("checks", "rules", "codes"), "list"),
    **dict.fromkeys(("launch", "exec", "torchrun"), "run -- COMMAND"),
    "version": "--version",
    "help": "--help",
}
"""Word -> what follows the program's name; `{}` is the word itself."""
CHECKPOINTS: Mapping[str, str] = {
    **dict.fromkeys(("verify", "validate"), "inspect --verify"),
    **dict.fromkeys(("show", "info", "ls", "list", "read"), "inspect"),
    **dict.fromkeys(("load", "resume"), "check"),
    **dict.fromkeys(("merge", "export", "consolidate", "reshard"), "convert"),
    "compare": "diff",
    **dict.fromkeys(("newest", "last"), "latest"),
}
"""The same below `ckpt`."""


def meant(word: str, commands: Mapping[str, str] = COMMANDS, program: str = PROGRAM) -> str:
    """The command that a word stands for, with the program's name; "" for a word that is not known."""
    said = commands.get(word.lower().replace("_", "-"))
    return f"{program} {said.format(word.lower())}" if said is not None else ""
