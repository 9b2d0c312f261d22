"""Write docs/checks/*.md from the checks' docstrings, and the help blocks of README.md from the commands.

`--check` writes nothing and exits 1 where a file is not what would be written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.spec import CheckSpec

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "ENV": "Driver, CUDA, torch, NCCL and the Python environment",
    "GPU": "Health and state of GPUs",
    "LNK": "NVLink, NVSwitch, P2P and PCIe",
    "NET": "Interfaces, names, ports and RDMA adapters",
    "HST": "Limits, memory, processors and containers",
    "VAR": "Environment variables",
    "STO": "Checkpoint path and file systems",
    "RNK": "Differences between ranks",
    "PRB": "Measured communication",
}
BLOCK = re.compile(r"(<!-- help: ([a-z ]*)-->\n```\n).*?(```\n<!-- /help -->)", re.DOTALL)


def page(family: str, checks: list[CheckSpec]) -> str:
    """The page of one family."""
    lines = [f"# {family}: {FAMILIES.get(family, family)}", "", "| code | row | finds |", "|---|---|---|"]
    lines += [
        f"| [{c.code}](#{c.code.lower()}) | {c.row.value if c.row else ''} | {c.title} |" for c in checks
    ]
    for c in checks:
        d = c.documentation
        row = f"row `{c.row.value}`" if c.row else "no row of its own"
        lines += ["", f"## {c.code}", f"**{c.title}** ({row})", ""]
        lines += [f"*What it looks at.* {d.what}", "", f"*Why it matters.* {d.why}", ""]
        lines += [f"*Fix.* {d.fix}", "", f"*Sources.* {d.sources}"]
    return "\n".join(lines) + "\n"


def help_of(words: str) -> str:
    """What `fsdp-doctor WORDS --help` prints, at 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", *words.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd=ROOT,
    )
    return done.stdout


def wanted() -> dict[Path, str]:
    """Every generated file and what belongs in it."""
    families: dict[str, list[CheckSpec]] = {}
    for check in registry().checks:
        families.setdefault(check.family, []).append(check)
    files = {ROOT / "docs" / "checks" / f"{f}.md": page(f, checks) for f, checks in families.items()}
    readme = ROOT / "README.md"
    files[readme] = BLOCK.sub(lambda m: m[1] + help_of(m[2]) + m[3], readme.read_text("utf-8"))
    return files


def main() -> int:
    """Write, or compare with `--check`."""
    stale = [p for p, text in wanted().items() if not p.is_file() or p.read_text("utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not up to date")
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted()[path], "utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
