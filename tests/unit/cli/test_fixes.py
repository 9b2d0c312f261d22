"""`--fix` shows; `--fix --yes` runs what is safe, yours and plain, and nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fsdp_doctor.cli.fixes import carry_out, plan
from fsdp_doctor.findings import Fix, Owner, Result, Risk, Row, Status, Subject


def result(
    command: str | None,
    status: Status = Status.FAIL,
    risk: Risk = Risk.SAFE,
    owner: Owner = Owner.YOU,
    **more: object,
) -> Result:
    fix = Fix("Do it", command, risk, owner)
    return Result("GPU001", "t", Row.START, status, Subject(), "f", fix=fix, **more)  # type: ignore[arg-type]


def outcome(*results: Result, apply: bool = True) -> list[dict[str, object]]:
    return carry_out(plan(results), apply, 10)


def test_dry_by_default(tmp_path: Path) -> None:
    target = tmp_path / "made"
    (told,) = outcome(result(f"touch {target}"), apply=False)
    assert (told["applied"], told["outcome"]) == (False, "would be run with --yes")
    assert not target.exists()


def test_safe_and_yours_is_run_once(tmp_path: Path) -> None:
    target = tmp_path / "with space"
    command = f"mkdir {shlex.quote(str(target))}"
    (told,) = outcome(result(command), result(command, Status.WARN))
    assert (told["applied"], told["exit"], told["outcome"]) == (True, 0, "done")
    assert target.is_dir()


@pytest.mark.parametrize(
    "made",
    [
        lambda c: result(c, risk=Risk.NEEDS_ROOT),
        lambda c: result(c, risk=Risk.DISRUPTIVE),
        lambda c: result(c, owner=Owner.ADMIN),
        lambda c: result(c, owner=Owner.HARDWARE),
    ],
)
def test_others_are_only_shown(tmp_path: Path, made: object) -> None:
    target = tmp_path / "made"
    (told,) = outcome(made(f"touch {target}"))  # type: ignore[operator]
    assert (told["applied"], str(told["outcome"]).startswith("not run: ")) == (False, True)
    assert not target.exists()


@pytest.mark.parametrize(
    "made",
    [
        lambda c: result(c, Status.PASS),
        lambda c: result(c, Status.INFO),
        lambda c: result(c, Status.SKIP),
        lambda c: result(c, suppressed="known"),
        lambda c: result(None),
    ],
)
def test_nothing_to_do(tmp_path: Path, made: object) -> None:
    assert outcome(made("true")) == []  # type: ignore[operator]


@pytest.mark.parametrize(
    "command",
    [
        "touch {t}; true", "touch {t} && true", "true | touch {t}", "touch $(echo {t})", 'touch "$(echo {t})"',
        "touch `echo {t}`", "touch {t} > /dev/null", "A=1 touch {t}", "touch {t}\ntrue", "export A=1",
        "sudo touch {t}", "no-such-program-here {t}", "touch '{t}", "rm -f {t}*",
        "bash -c 'touch {t}'", "env sudo touch {t}", "/bin/sh -c 'touch {t}'",
    ],
)  # fmt: skip
def test_no_shell_and_no_root(tmp_path: Path, command: str) -> None:
    target = tmp_path / "made"
    (told,) = outcome(result(command.format(t=target)))
    assert told["applied"] is False
    assert str(told["outcome"]).startswith("not run: ")
    assert not target.exists()


def test_quoted_metacharacters_are_plain(tmp_path: Path) -> None:
    (told,) = outcome(result("printf '%s' 'a;b $HOME *'"))
    assert (told["applied"], told["output"]) == (True, "a;b $HOME *")


def test_failure_and_deadline() -> None:
    (told,) = outcome(result("false"))
    assert (told["applied"], told["exit"], told["outcome"]) == (False, 1, "failed: exit status 1")
    (told,) = carry_out(plan([result("sleep 60")]), True, 0.3)
    assert (told["applied"], "no answer in" in str(told["outcome"])) == (False, True)
