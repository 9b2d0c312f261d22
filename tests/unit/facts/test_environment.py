from __future__ import annotations

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.environment import environment
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Unknown
from tests.unit.facts.literal import known, source


def environment_of(files: dict[str, str | bytes], env: dict[str, str]) -> Environment:
    value = known(environment(source(files, env=env)))
    assert isinstance(value, Environment)
    return value


def test_the_variables() -> None:
    machine = machines.h100()
    machine.env["NCCL_DEBUG"] = "INFO"
    found = known(environment(source_of(machine)))
    assert isinstance(found, Environment)
    assert found.variables == machine.env
    assert found.nccl_conf == {}
    assert found.nccl("NCCL_DEBUG") == "INFO"


def test_the_files_of_nccl_in_their_order() -> None:
    found = environment_of(
        {
            "etc/nccl.conf": "NCCL_DEBUG=WARN\n#NCCL_X=1\nNCCL_IB_DISABLE=1\nNCCL_IB_DISABLE=0\nno line\n=x\n",
            "home/user/.nccl.conf": b"NCCL_DEBUG=TRACE \r\nNCCL_ALGO=Ring=1\n",
        },
        {"HOME": "/home/user/"},
    )
    assert found.nccl_conf == {
        "NCCL_DEBUG": ("TRACE \r", "/home/user/.nccl.conf"),
        "NCCL_ALGO": ("Ring=1", "/home/user/.nccl.conf"),
        "NCCL_IB_DISABLE": ("1", "/etc/nccl.conf"),
    }


def test_the_named_file_stands_in_for_the_home_folder() -> None:
    found = environment_of(
        {"etc/nccl.conf": "A=1", "home/user/.nccl.conf": "B=2", "opt/n.conf": "C=3"},
        {"HOME": "/home/user", "NCCL_CONF_FILE": "/opt/n.conf"},
    )
    assert found.nccl_conf == {"C": ("3", "/opt/n.conf"), "A": ("1", "/etc/nccl.conf")}


def test_the_account_decides_which_home() -> None:
    found = environment_of(
        {
            "proc/self/status": "Uid:\t1000\t1000\t1000\t1000",
            "etc/passwd": "root:x:0:0::/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n",
            "home/u/.nccl.conf": "A=account",
            "elsewhere/.nccl.conf": "A=variable",
        },
        {"HOME": "/elsewhere"},
    )
    assert found.nccl_conf == {"A": ("account", "/home/u/.nccl.conf")}


def test_an_unknown_environment() -> None:
    assert isinstance(environment(source()), Unknown)
