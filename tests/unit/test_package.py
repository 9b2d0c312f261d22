"""The two links, the wheel and the weight of the imports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "PYTEST_"))} | more
    return subprocess.run(
        words, capture_output=True, text=True, timeout=110, cwd=ROOT, env=environment, check=False
    )


@pytest.mark.parametrize(("link", "target"), [("fsdp_doctor", "doctor"), ("doctor/checks", "../checks")])
def test_links_are_links_and_resolve(link: str, target: str) -> None:
    path = ROOT / link
    assert path.is_symlink()
    assert os.readlink(path) == target
    assert (path / "__init__.py").is_file()


def modules_on_disk() -> set[str]:
    return {
        "fsdp_doctor/" + str(p.relative_to(ROOT / "doctor"))
        for p in (ROOT / "doctor").rglob("*.py")
        if "checks" not in p.relative_to(ROOT / "doctor").parts
    } | {"fsdp_doctor/checks/" + str(p.relative_to(ROOT / "checks")) for p in (ROOT / "checks").rglob("*.py")}


def test_wheel_holds_every_module_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".venv", ".git", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
        ),
    )
    built = run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    assert {n for n in names if n.endswith(".py")} == modules_on_disk()
    others = {n for n in names if not n.endswith(".py")}
    assert "fsdp_doctor/py.typed" in others
    assert {n for n in others if not n.endswith((".json", "py.typed"))} == set()
    assert any(n.endswith(".schema.json") for n in others)
    metadata = zipfile.ZipFile(wheel).read(
        next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA"))
    )
    plain = [
        line
        for line in metadata.decode().splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert not any(re.match(r"Requires-Dist: torch\b", line) for line in plain)


HEAVY = ["torch", "numpy", "pynvml", "psutil", "rich", "yaml", "asyncio"]


@pytest.mark.parametrize(
    ("words", "banned"),
    [
        (["--help"], HEAVY),
        (["--version"], ["torch", "numpy", "pynvml"]),
        (["list"], ["torch", "numpy", "pynvml", "psutil"]),
        (["explain", "GPU001"], ["torch", "numpy", "pynvml", "psutil"]),
        (["table"], ["torch", "numpy", "pynvml", "psutil"]),
    ],
)
def test_commands_import_no_more_than_they_need(words: list[str], banned: list[str]) -> None:
    code = (
        "import sys\nfrom fsdp_doctor.cli.main import main\nsys.argv = ['fsdp-doctor', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        f"print('HEAVY', [m for m in {banned!r} if m in sys.modules])"
    )
    done = run(sys.executable, "-c", code, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_nothing_unfinished_is_committed() -> None:
    """What is left to do belongs in the tracker."""
    tracked = run("git", "ls-files", "-z").stdout.split("\0")
    words = re.compile(r"\b(TODO|FIXME|XXX)\b")
    bad = [
        f"{name}: {match[0]}"
        for name in tracked
        if name.endswith((".py", ".md", ".toml", ".yaml", "Makefile", "run")) and (ROOT / name).is_file()
        if (match := words.search((ROOT / name).read_text("utf-8"))) and name != "tests/unit/test_package.py"
    ]
    assert bad == []
