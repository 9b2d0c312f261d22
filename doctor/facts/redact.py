"""Take secrets out of what leaves the machine: by the name they are given, by how they look, by recurrence.

The other way round a recording has to stay judgeable: numbers, switches, paths and the variables that checks
read keep their values unless a value itself looks like a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.source import Json

REDACTED = "<redacted>"
MIN_RECURRING = 12
"""Characters of a secret that is looked for everywhere else; a shorter one may be an ordinary word."""

STRONG = re.compile(
    r"passw(?:or)?d|passphrase|secret|credential|token(?![a-z])|(?:api|access|account|private|signing|shared)[_-]?key"
    r"|connection[_-]?string|webhook",
    re.I,
)
"""Anywhere in a name. TOKENIZERS_PARALLELISM and MAX_TOKENS are none."""
WEAK = re.compile(
    r"(?:^|[._-])(?:auth|authorization|cookies?|private|creds?|jwt|pat|pass|bearer|signature|sig|dsn|sas)(?:$|[._-])"
    r"|(?:^|[._-])(?:key|pwd)$|(?<!by)(?<!com)(?<!by_)pass$",
    re.I,
)
"""As a word of a name."""
READ_BY_CHECKS = re.compile(r"(?:NCCL|CUDA|TORCH|PYTORCH|TORCHELASTIC|FSDP|UCX|FI|OMP|OMPI)_")
"""Variables with such names hold no secret under a weak name; NCCL_IB_PKEY and the like."""
PLAIN_NAMES = {"PWD", "OLDPWD", "XAUTHORITY"}
PATH_NAME = re.compile(r"(?:file|path|dir|sock|home)$", re.I)
PLAIN_VALUE = re.compile(r"|[01]|true|false|yes|no|on|off|none|null|\(null\)", re.I)

_LEFT = r"(?<![A-Za-z0-9_])"
LOOKS = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z0-9 ]{2,40}-----.*?(?:-----END [A-Z0-9 ]{2,40}-----|\Z)",
            _LEFT + r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])",
            _LEFT + r"(?:gh[pousr]|github_pat|hf|npm|glsa|dop_v1|rk_live|sk_live|lin_api)_[A-Za-z0-9_]{16,}",
            _LEFT + r"(?:sk|nvapi|glpat|pypi|xox[a-z]|xapp|dapi|pplx|gsk)-[A-Za-z0-9_-]{10,}",
            _LEFT + r"AIza[0-9A-Za-z_-]{30,}",
            _LEFT + r"ya29\.[0-9A-Za-z_-]{16,}",
            _LEFT + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?",
            r"https://hooks\.slack\.com/services/[A-Za-z0-9/]+",
        )
    ),
    re.S,
)
URL_USER = re.compile(r"(://|(?<![^\s='\"])//)(?!<redacted>@)([^\s/'\"]+)@(?=[^\s/])")
HEADER = re.compile(
    r"((?:proxy-)?authorization\s*[:=]\s*['\"]?(?:[A-Za-z]+\s+)?|(?<!\w)bearer\s+|(?<![\w-])(?:set-)?cookie:\s*)"
    r"([^\s'\",;]{4,}(?:;\s*[\w.-]+=[^\s'\",;]+)*)",
    re.I,
)
ASSIGNED = re.compile(
    r"(?<![\w.-])(-{0,2}[A-Za-z_][\w.-]{0,80})(\s?=(?!=)\s?)((?:\"[^\"]*\"|'[^']*'|[^\s,;&\"'\0])+)"
)
QUOTED = re.compile(r"([\"'])([A-Za-z_][\w.-]{0,80})(\1\s*:\s*)([\"'])(.*?)(?<!\\)\4")
COLON = re.compile(
    r"(?<![\w.-])([\w.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key))(\s*:\s*)([^\s,;\"']{6,})",
    re.I,
)
FLAG = re.compile(
    r"(?<![\w.-])(-{1,2}[A-Za-z][\w.-]{0,80})([ \t]+)(?!-)((?:\"[^\"]*\"|'[^']*'|[^\s,;&\"'\0])+)"
)
ACCOUNT_FLAGS = {"-u", "--user", "--proxy-user"}
LOOKS_MARKS = (
    *("-----BEGIN", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    *("hf_", "npm_", "glsa_", "dop_v1_", "rk_live_", "sk_live_", "lin_api_", "sk-", "nvapi-"),
    *("glpat-", "pypi-", "xox", "xapp-", "dapi-", "pplx-", "gsk-", "AIza", "ya29.", "eyJ"),
    "hooks.slack.com",
)  # fmt: skip
"""One of these is in whatever `LOOKS` matches."""
NAME_MARKS = (
    *("pass", "secret", "cred", "key", "connection", "webhook", "auth", "cook", "private"),
    *("jwt", "pat", "bearer", "sig", "dsn", "sas", "pwd"),
)  # fmt: skip
"""In lower case: one of these or `token` is in a name of a secret, and in what `COLON` and `HEADER` match."""
MOUNT_USER = re.compile(r"(?<![\w.-])(user(?:name)?|domain)=(?!<redacted>)([^\s,]+)")
PROCESS_WORDS = re.compile(r"proc/[^/]+/(?:cmdline|environ)$")


def is_secret_name(name: str) -> bool:
    """Whether what is stored under a name should not be shown."""
    if name in PLAIN_NAMES:
        return False
    if STRONG.search(name):
        return True
    return bool(WEAK.search(name)) and not READ_BY_CHECKS.match(name)


def _may_name(text: str) -> bool:
    """Whether a text in lower case may hold a secret's name; `tokens`, which logs count, is none."""
    return any(map(text.__contains__, NAME_MARKS)) or text.count("token") > text.count("tokens")


class Redactor:
    """Redacts one recording. A secret found under its name is taken out elsewhere too: see `again`."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def env(self, variables: Mapping[str, str]) -> dict[str, str]:
        """An environment."""
        return {n: self._named(n, v) for n, v in variables.items()}

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line or an environment block, one word each; `--token VALUE` is two."""
        out: list[str] = []
        for word in words:
            flag = out[-1] if out else ""
            if flag.startswith("-") and "=" not in flag and not word.startswith("-"):
                out.append(self._flag_value(flag, word))
                continue
            name, mark, value = word.partition("=")
            named = mark and value[:1] != "=" and re.fullmatch(r"-{0,2}[A-Za-z_][\w.-]*", name)
            out.append(f"{name}={self._named(name.lstrip('-'), value)}" if named else self.text(word))
        return out

    def text(self, text: str) -> str:
        """Free text: a log, a configuration file, the kernel's command line."""
        # Most texts hold nothing that any pattern could match, and looking for a word is far cheaper. Case is
        # not as simple beyond ASCII: such a text gets all patterns.
        plain = text.isascii()
        looks = not plain or any(map(text.__contains__, LOOKS_MARKS))
        user = not plain or "@" in text
        named = not plain or _may_name(text.lower())
        if looks:
            text = LOOKS.sub(self._whole, text)
        if user:
            text = URL_USER.sub(lambda m: f"{m[1]}{self._hide(m[2].rpartition(':')[2])}@", text)
        if named:
            text = HEADER.sub(lambda m: m[1] + self._hide(m[2]), text)
            text = ASSIGNED.sub(self._assigned, text)
            text = QUOTED.sub(self._quoted, text)
            text = COLON.sub(lambda m: f"{m[1]}{m[2]}{self._hide(m[3])}", text)
        if looks or user or named or "-u" in text:
            text = FLAG.sub(self._flag, text)
        return text

    def file(self, name: str, raw: bytes) -> bytes:
        """A file of the machine; `name` is its path without the leading slash."""
        text = raw.decode("latin-1")  # every byte is one character, so that nothing else changes
        if PROCESS_WORDS.match(name):
            return "\0".join(self.words(text.split("\0"))).encode("latin-1")
        if name == "etc/passwd":
            text = "".join(_account(line) for line in text.splitlines(keepends=True))
        if name.rpartition("/")[2] in ("mountinfo", "mounts", "fstab"):
            text = "".join(self._mount(line) for line in text.splitlines(keepends=True))
        return self.text(text).encode("latin-1")

    def json(self, value: Json) -> Json:
        """A JSON value with every text in it redacted by its looks; its names mean no secrets."""
        if isinstance(value, str):
            return LOOKS.sub(self._whole, value)
        if isinstance(value, Mapping):
            return {k: self.json(v) for k, v in value.items()}
        return [self.json(v) for v in value] if isinstance(value, Sequence) else value

    def again(self, raw: bytes) -> bytes:
        """Bytes without the secrets that were found under a name anywhere. Call it when all was seen."""
        for secret in sorted(self._seen, key=lambda s: (-len(s), s)):
            for form in {secret, json.dumps(secret)[1:-1]}:
                raw = raw.replace(form.encode("utf-8", "replace"), REDACTED.encode())
                if not form.isascii() and all(ord(c) < 256 for c in form):
                    raw = raw.replace(form.encode("latin-1"), REDACTED.encode())
        return raw

    def _named(self, name: str, value: str) -> str:
        if is_secret_name(name) and not _is_plain(name, value):
            return self._hide(value, recurs=STRONG.search(name) is not None)
        return self.text(value)

    def _hide(self, value: str, *, recurs: bool = True) -> str:
        bare = value.strip("\"'")
        mixed = any(c.isdigit() for c in bare) and any(c.isalpha() for c in bare)
        if recurs and len(bare) >= MIN_RECURRING and mixed and not bare.startswith("/"):
            self._seen.add(bare)
        return REDACTED

    def _whole(self, match: re.Match[str]) -> str:
        return self._hide(match[0])

    def _assigned(self, match: re.Match[str]) -> str:
        name, mark, value = match.groups()
        bare = name.lstrip("-")
        if is_secret_name(bare) and not _is_plain(bare, value.strip("\"'")):
            return f"{name}{mark}{self._hide(value, recurs=STRONG.search(bare) is not None)}"
        return match[0]

    def _quoted(self, match: re.Match[str]) -> str:
        quote, name, middle, mark, value = match.groups()
        if is_secret_name(name) and not _is_plain(name, value):
            return f"{quote}{name}{middle}{mark}{self._hide(value)}{mark}"
        return match[0]

    def _flag(self, match: re.Match[str]) -> str:
        flag, blank, value = match.groups()
        return f"{flag}{blank}{self._flag_value(flag, value)}"

    def _flag_value(self, flag: str, value: str) -> str:
        name = flag.lstrip("-")
        if flag in ACCOUNT_FLAGS and ":" in value and not value.endswith(f":{REDACTED}"):
            return f"{value.partition(':')[0]}:{self._hide(value.partition(':')[2])}"
        if flag.startswith("--") and is_secret_name(name) and not _is_plain(name, value):
            return self._hide(value)
        return value if value == REDACTED else self.text(value)

    def _mount(self, line: str) -> str:
        if not re.search(r"\b(?:cifs|smb3|davfs|fuse|9p|afs)", line):
            return line
        return MOUNT_USER.sub(lambda m: f"{m[1]}={REDACTED}", line)


def _is_plain(name: str, value: str) -> bool:
    """A switch, nothing at all, or the path of a file under a name that says so."""
    return (
        value == REDACTED
        or PLAIN_VALUE.fullmatch(value) is not None
        or (value.startswith("/") and PATH_NAME.search(name) is not None)
    )


def _account(line: str) -> str:
    """A line of /etc/passwd without the person's name."""
    parts = line.split(":")
    if len(parts) == 7:
        parts[1], parts[4] = "x", ""
    return ":".join(parts)
