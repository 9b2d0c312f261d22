"""The pure half needs no torch, and what workers load needs the standard library alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fsdp_doctor.probe

HERE = Path(fsdp_doctor.probe.__file__).parent
PURE = [
    "curve",
    "expected",
    "failures",
    "figures",
    "groups",
    "levels",
    "localise",
    "pair_links",
    "pair_ranks",
    "pair_table",
    "pairs",
    "peers",
    "records",
    "stats",
    "forecast",
    "report_step",
    "step_choice",
    "step_fabric",
    "step_inverse",
    "step_model",
    "step_words",
    "tournament",
    "verdicts",
]


def test_no_torch_no_processes() -> None:
    modules = ", ".join(f"fsdp_doctor.probe.{m}" for m in PURE)
    code = f"import sys, {modules}; print([m for m in ('torch', 'numpy', 'subprocess', 'pynvml') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["stats", "tournament"])
def test_workers_can_load_it(module: str) -> None:
    tree = ast.parse((HERE / f"{module}.py").read_text())
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {str(m).partition(".")[0] for m in imported} <= set(sys.stdlib_module_names) | {"__future__"}
