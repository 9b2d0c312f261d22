"""Write docs/checks/*.md from the checks' docstrings, README.md's help and output from the commands, and the
table of docs/rehearse.md from what was measured.

`--check` writes nothing and exits 1 where a file is not what would be written.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fixtures import machines
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
    "WRP": "Units of a wrap plan",
    "MEM": "GPU memory of a configuration",
    "CKP": "Checkpoints: what is on disk, and whether it loads",
    "LOG": "What failed jobs leave behind, and jobs that hang",
}
OUTPUT = re.compile(r"(<!-- output -->\n```\n).*?(```\n<!-- /output -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- rehearsed -->\n).*?(<!-- /rehearsed -->)", re.DOTALL)
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


def run(*words: str, columns: str = "80") -> str:
    """What a command prints; its exit status does not matter."""
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"COLUMNS": columns, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd=ROOT,
    )
    return done.stdout


def demonstration() -> str:
    """What `check --from` prints for a machine with two faults; the time it took is no part of it."""
    machine = machines.h100("gpu-node-17")
    for link in (4, 5, 12):
        machine.gpu(3)["nvmlDeviceGetNvLinkState"]["args"][machines.key(link)] = 0
    machine.env["NCCL_P2P_DISABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        machine.write(Path(folder) / "recording")
        text = run("check", "--from", str(Path(folder) / "recording"), "--no-color", columns="92")
    return re.sub(r" in [0-9.]+ s ", " in 0.4 s ", text)


def rehearsed() -> str:
    """Rehearsals on a GPU beside those on fake tensors, as a table."""
    found = json.loads((ROOT / "fixtures" / "rehearsed.json").read_text("utf-8"))
    lines = [
        "| plain.py … | ranks | on the GPU | on fake tensors | difference, bytes | reserved: GPU, fake |",
        "|---|---|---|---|---|---|",
    ]
    for run in sorted(found["runs"], key=lambda r: (r["world_size"], r["arguments"])):
        real, fake = run["peak"] - run["workspaces"], run["fake_peak"]
        low, high = (f"{n >> 20}" for n in run["fake_reserved"])
        lines.append(
            f"| {' '.join(run['arguments']) or '(FSDP2)'} | {run['world_size']} | {real / 2**20:.3f} "
            f"| {fake / 2**20:.3f} | {real - fake} | {run['reserved'] - run['workspaces'] >> 20}, "
            f"{low if low == high else f'{low} to {high}'} |"
        )
    return "\n".join(lines) + "\n"


def wanted() -> dict[Path, str]:
    """Every generated file and what belongs in it."""
    families: dict[str, list[CheckSpec]] = {}
    for check in registry().checks:
        families.setdefault(check.family, []).append(check)
    files = {ROOT / "docs" / "checks" / f"{f}.md": page(f, checks) for f, checks in families.items()}
    readme = ROOT / "README.md"
    files[readme] = OUTPUT.sub(lambda m: m[1] + demonstration() + m[2], _helps(readme.read_text("utf-8")))
    page_of_rehearsals = ROOT / "docs" / "rehearse.md"
    told = page_of_rehearsals.read_text("utf-8")
    files[page_of_rehearsals] = TABLE.sub(lambda m: m[1] + rehearsed() + m[2], told)
    return files


def _helps(text: str) -> str:
    return BLOCK.sub(lambda m: m[1] + run(*m[2].split(), "--help") + m[3], text)


def main() -> int:
    """Write, or compare with `--check`."""
    files = wanted()
    stale = [p for p, text in files.items() if not p.is_file() or p.read_text("utf-8") != text]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is not up to date: make docs")
        else:
            print(f"wrote {path.relative_to(ROOT)}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], "utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
