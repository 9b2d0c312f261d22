"""Nothing is fetched here: connections of this process are refused, and programs whose work is to fetch."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from .hints import WHILE_BUILT

LOCAL = ("127.0.0.1", "::1", "localhost", "None", "")
FETCHING: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("curl", "wget", "aria2c", "axel", "lftp", "ftp", "sftp", "scp", "ssh", "rsync", "rclone", "gdown"),
        frozenset(),
    ),
    **dict.fromkeys(("aws", "gsutil", "gcloud", "az", "azcopy", "s5cmd", "s3cmd"), frozenset()),
    **dict.fromkeys(("hf", "huggingface-cli"), frozenset(("download", "upload", "login", "whoami", "repo"))),
    **dict.fromkeys(("pip", "pip3", "uv", "conda", "mamba"), frozenset(("install", "download", "create"))),
    "git": frozenset(("clone", "fetch", "pull", "push", "ls-remote", "submodule")),
    "git-lfs": frozenset(("clone", "fetch", "pull", "push")),
}
"""Programs that reach other machines, and the words among their arguments that mean it; none: always."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
IN_FRONT = ("env", "sudo", "nohup", "time", "timeout", "nice", "exec", "stdbuf", "command")
ASKING = ("--version", "-V", "--help", "-h")
NEAR = ("://localhost", "://127.0.0.1", "://[::1]", "file://")


class Offline(OSError):
    """A connection was tried, or a program that would make one."""


def no_network(during: str = WHILE_BUILT) -> None:
    """Refuse what leaves the machine: a factory must not download anything here."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            address = args[1]
            if isinstance(address, tuple) and str(address[0]) not in LOCAL[:3]:
                raise Offline(f"connection to {address[0]}:{address[1]} {during}")
        elif event == "socket.getaddrinfo":
            if str(args[0]) not in LOCAL:
                raise Offline(f"look-up of {args[0]} {during}")
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            words = args[0] if event == "os.system" else args[1]
            program = fetching(words, shell=event == "os.system")
            if program:
                raise Offline(f"{program} is started {during}")

    sys.addaudithook(hook)


def fetching(words: Any, *, shell: bool = False) -> str:
    """The program among those that a command starts which would reach another machine; "" for none.

    `words` are a command's, or the text of a shell's, as strings, bytes or paths.
    """
    told = [words] if isinstance(words, (str, bytes, os.PathLike)) else list(words or ())
    texts = [os.fsdecode(w) for w in told]
    for command in _commands(texts, shell):
        name, rest = os.path.basename(command[0]), command[1:]
        if name.startswith("python") and rest[:1] == ["-m"] and len(rest) > 1:
            name, rest = rest[1], rest[2:]
        if name == "git" and "lfs" in rest:
            name, rest = "git-lfs", rest[rest.index("lfs") + 1 :]
        meant = FETCHING.get(name)
        if meant is None or (meant and not meant.intersection(rest)) or not rest:
            continue
        near = any(part in word for word in rest for part in NEAR)
        if near or rest[0] in ASKING or (name == "rsync" and not any(":" in w for w in rest)):
            continue
        return name
    return ""


def _commands(words: list[str], shell: bool) -> Iterator[list[str]]:
    """The simple commands of a command line, a shell's `-c` among them."""
    if shell:
        yield from _of_shell(words[0])
        return
    while words and (os.path.basename(words[0]) in IN_FRONT or "=" in words[0] or words[0][:1].isdigit()):
        words = words[1:]
    if not words:
        return
    if os.path.basename(words[0]) in SHELLS:
        for option, text in pairwise(words[1:]):
            if option.startswith("-") and not option.startswith("--") and option.endswith("c"):
                yield from _of_shell(text)
                return
    yield words


def _of_shell(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # a quotation that does not end
        tokens = text.split()
    command: list[str] = []
    for token in [*tokens, ";"]:
        if token.strip("();<>|&") or not token:
            command.append(token)
            continue
        if command:
            yield from _commands(command, False)
        command = []
