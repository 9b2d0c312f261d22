"""Codes, documentation, plug-ins and their clashes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import merge, registry
from fsdp_doctor.engine.spec import SpecError, check, parse_documentation
from fsdp_doctor.findings import Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from tests.unit.engine.checks import DOCUMENTATION, spec

FAMILIES = {"ENV", "GPU", "LNK", "NET", "HST", "VAR", "STO"}


def test_built_in_checks() -> None:
    checks = registry().checks
    assert {c.family for c in checks} >= FAMILIES
    assert len(checks) >= 70
    assert len({c.code for c in checks}) == len(checks)
    assert len({c.title for c in checks}) == len(checks)
    assert registry().broken == ()


@pytest.mark.parametrize("name", ["", "title only", "Title.\n\nWhat: a\nWhy: b\nFix: c"])
def test_documentation_must_be_whole(name: str) -> None:
    with pytest.raises(SpecError):
        parse_documentation("ENV001", name)


def test_documentation_is_unwrapped() -> None:
    made = parse_documentation("ENV001", DOCUMENTATION)
    assert (made.title, made.why, made.fix) == ("Something is wrong", "it matters to training.", "repair it.")


@pytest.mark.parametrize("code", ["env001", "ENV01", "ENV0001", "EN001", "ENV001x", ""])
def test_code_has_its_form(code: str) -> None:
    with pytest.raises(SpecError, match="three capital letters"):
        spec(code)


def test_needs_must_name_a_fact() -> None:
    def judge(facts: Facts, options: Options) -> list[object]:
        return []

    judge.__doc__ = DOCUMENTATION
    with pytest.raises(SpecError, match="needs"):
        check("ENV001", Row.START, needs=())(judge)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no docstring"):
        check("ENV001", Row.START, needs=(Host,))(lambda f, o: ())


def test_clash_names_both_packages_and_the_first_stays() -> None:
    first, second = spec("ENV001"), spec("ENV001")
    made = merge([first], [("acme-checks", [second, spec("ACM001")])])
    assert [c.code for c in made.checks] == ["ACM001", "ENV001"]
    assert made.get("ENV001") is first
    assert made.plugins == ("acme-checks",)
    (broken,) = made.broken
    assert broken.package == "acme-checks"
    assert "fsdp-doctor" in broken.reason and "acme-checks" in broken.reason


def test_plugins_are_found_by_entry_point(tmp_path: Path) -> None:
    """One good plug-in and one whose import fails, as installed distributions."""
    good, bad = tmp_path / "acme_checks.py", tmp_path / "bad_checks.py"
    good.write_text(
        textwrap.dedent("""
        from fsdp_doctor.engine.spec import check
        from fsdp_doctor.findings import Row, warn
        from fsdp_doctor.subjects.host import Host

        @check("ACM001", Row.SLOW, needs=(Host,))
        def too_many_cats(facts, options):
            '''Too many cats.

            What: counts cats.
            Why: cats sit on keyboards.
            Fix: feed them.
            Sources: experience.
            '''
            yield warn("3 cats", "at most 2")
        """)
    )
    bad.write_text("raise RuntimeError('broken on import')\n")
    (tmp_path / "leaver.py").write_text("print('noise')\nraise SystemExit(0)\n")
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    for name, module in (
        ("acme", "acme_checks"),
        ("bad", "bad_checks"),
        ("leaver", "leaver"),
        ("sleeper", "sleeper"),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[fsdp_doctor.checks]\n{name} = {module}\n")
    code = textwrap.dedent("""
        from fsdp_doctor.engine import registry as module
        module.IMPORT_SECONDS = 2.0
        r = module.registry()
        print(r.get("ACM001").package, r.plugins, [(b.package, b.reason) for b in r.broken])
        """)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = "acme ('acme',) [('bad', 'RuntimeError: broken on import'), ('leaver', 'SystemExit: 0'), "
    said += "('sleeper', 'TimeoutError: its import has not ended after 2 s')]\n"
    assert done.stdout == said, "and what a plug-in prints is no part of the output"
