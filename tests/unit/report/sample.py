"""Reports made by hand: one of everything, and one full of hostile text."""

from __future__ import annotations

from fsdp_doctor.findings import (
    Confidence,
    Evidence,
    Fix,
    Owner,
    Report,
    Result,
    Risk,
    Row,
    Status,
    Subject,
)

TOOL = {"name": "fsdp-doctor", "version": "1.2.3", "python": "3.12.4"}
STARTED = "2026-09-14T08:30:00+00:00"


def result(code: str, title: str, status: Status, found: str, **more: object) -> Result:
    return Result(code, title, more.pop("row", None), status, more.pop("subject", Subject()), found, **more)  # type: ignore[arg-type]


def everything() -> Report:
    return Report(
        command="check",
        results=(
            result("ENV001", "Driver is too old", Status.PASS, "driver 580.95.05, CUDA 13.0", seconds=0.001),
            result("GPU001", "GPU memory is held", Status.PASS, "8 GPUs, 0 processes"),
            result(
                "GPU002",
                "Xid messages",
                Status.SKIP,
                "the kernel log could not be read",
                expected="run as root",
            ),
            result("NET001", "Interfaces", Status.SKIP, "no network facts"),
            result(
                "GPU003",
                "GPU rows wait for a reset to be remapped",
                Status.FAIL,
                "1 row ≥ pending on 2 GPUs",
                row=Row.NCCL,
                subject=Subject(host="node-a,node-b", rank=(0, 1, 2, 3, 9), gpu=(3, 5)),
                expected="no pending row",
                why="a row that is not remapped ends the run at the next access → every rank waits",
                fix=Fix(
                    "Reset the GPUs when nothing runs on them",
                    "nvidia-smi --gpu-reset -i 3,5 --some-very-long-option='a quoted value that stays whole'",
                    Risk.NEEDS_ROOT,
                    Owner.ADMIN,
                ),
                evidence=(Evidence("nvml.json nvmlDeviceGetRemappedRows", "[0, 1, 1, 0]\nsecond line"),),
                seconds=0.002,
            ),
            result(
                "VAR001",
                "Variable is misspelt",
                Status.WARN,
                "NCCL_SOCKET_IFNAMES is set",
                subject=Subject(variable="NCCL_SOCKET_IFNAMES"),
                expected="NCCL_SOCKET_IFNAME",
                why="NCCL does not read it",
                fix=Fix("Rename it", "export NCCL_SOCKET_IFNAME=eth0\nunset NCCL_SOCKET_IFNAMES"),
                confidence=Confidence.MEDIUM,
            ),
            result("ENV002", "Newer than the table", Status.INFO, "torch 3.0"),
            result(
                "LNK001",
                "Link is down",
                Status.ERROR,
                "the check failed: ValueError: boom",
                expected="a result",
                evidence=(Evidence("traceback", "Traceback…\n  File x"),),
            ),
            result(
                "STO001",
                "Checkpoint folder is not shared",
                Status.FAIL,
                "ext4",
                row=Row.SAVE,
                subject=Subject(path="/ckpt", file="train.py", line=7),
                expected="a shared file system",
                suppressed="one node only, see runbook",
            ),
        ),
        tool=TOOL,
        started=STARTED,
        seconds=1.25,
        data={
            "target": "node-a (recording)",
            "notes": ["3 of 4 ranks were recorded; missing: 3"],
            "fixes": [
                {
                    "code": "X",
                    "command": "pip check",
                    "risk": "safe",
                    "owner": "you",
                    "outcome": "would be run with --yes",
                }
            ],
        },
        unjudged=("--ckpt /dead: no answer in 5 s",),
    )


HOSTILE = "\x1b[31mred\x1b[0m [bold]markup[/bold] \x07\u202egnp.exe\u2066 \ud800 \x9b2J ]]> <b>&\n::error::x\r\nPASS: y"


def hostile() -> Report:
    subject = Subject(host=HOSTILE, device=HOSTILE, path=HOSTILE, file=HOSTILE, line=1, variable=HOSTILE)
    return Report(
        command="check",
        results=tuple(
            result(
                "GPU001",
                HOSTILE,
                status,
                HOSTILE,
                subject=subject,
                expected=HOSTILE,
                why=HOSTILE,
                fix=Fix(HOSTILE, HOSTILE),
                evidence=(Evidence(HOSTILE, HOSTILE),),
                suppressed=suppressed,
            )
            for status in Status
            for suppressed in (None, HOSTILE)
        ),
        tool=TOOL | {"version": HOSTILE},
        started=STARTED,
        seconds=0.0,
        data={
            "target": HOSTILE,
            "notes": [HOSTILE],
            HOSTILE: HOSTILE,
            "fixes": [{"command": HOSTILE, "output": HOSTILE}],
        },
        unjudged=(HOSTILE,),
    )


def empty() -> Report:
    return Report("check", (), TOOL, STARTED, 0.0)
