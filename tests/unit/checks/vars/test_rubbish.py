"""Nothing that may stand in a variable makes a check of the VAR or NET family raise."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from fixtures import machines
from fixtures.memory import facts_of
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Status
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.tables import debug_variables, nccl_variables, torch_variables

RUBBISH = (
    "", " ", "0", "1", "-1", "99999999999999999999", "0x", "0xFFFFFFFFFFFFFFFFFF", "08", "1e9", "true", "None", "[",
    "]", "[[]]", ":", "::", ",", ",,:,", "^", "^=", "=", "~", "~/x", "'", '"1"', "é", "٣", "\x00", "a:b:c:d", "[::1]:99",
    "[redacted]", "^^^^", "%p", "tcp://", "x" * 5000, ";:;", "allreduce:", ":ring", "[1:2,>:3],", "1,2,3", "{}", "%s{0}",
)  # fmt: skip
NAMES = sorted(
    nccl_variables.KNOWN
    | frozenset(nccl_variables.NEVER_READ)
    | torch_variables.TORCH_NCCL
    | torch_variables.TORCH_FR
    | torch_variables.GLOO
    | torch_variables.IMPORTANT
    | frozenset(debug_variables.SLOWING)
    | frozenset(debug_variables.TOOLS)
    | debug_variables.ACCELERATE_FSDP
    | {
        "RANK",
        "MKL_NUM_THREADS",
        "ACCELERATE_USE_DEEPSPEED",
        "nccl_debug",
        "NCCL_",
        "TORCH_NCCL_",
        "Ñ",
        "NCLL_X",
    }
)
CHECKS = [c for c in registry().checks if c.family in ("VAR", "NET")]
KINDS = tuple({k: None for c in CHECKS for k in (*c.needs, *c.uses)})
LAUNCHES = (
    None,
    Launch("torchrun", (), nodes=(2, 2), rdzv_endpoint="[", rdzv_backend="c10d"),
    Launch("python", (), environment={"MASTER_PORT": "\x00", "NCCL_SOCKET_IFNAME": "^="}),
)


@pytest.mark.parametrize("make", [machines.h100, machines.geforce, machines.laptop], ids=lambda m: m.__name__)
@pytest.mark.parametrize("launch", LAUNCHES, ids=["none", "torchrun", "python"])
def test_rubbish_in_every_variable(make: Callable[[], machines.Machine], launch: Launch | None) -> None:
    for shift in range(len(RUBBISH)):
        machine = make()
        values = itertools.islice(itertools.cycle(RUBBISH), shift, None)
        machine.env |= dict(zip(NAMES, values, strict=False))
        facts = facts_of(machine, KINDS, launch=launch)
        results = run_checks(CHECKS, facts, Options(nodes=(None, 1, 2)[shift % 3]))
        assert [r.evidence for r in results if r.status is Status.ERROR] == []


def test_redacted_values_are_never_judged() -> None:
    machine = machines.h100()
    machine.env |= {
        n: "[redacted]" for n in NAMES if n in nccl_variables.DOCUMENTED or n in torch_variables.TORCH_NCCL
    }
    results = run_checks(CHECKS, facts_of(machine, KINDS), Options(nodes=2))
    assert [r.found for r in results if r.status is Status.FAIL] == []
