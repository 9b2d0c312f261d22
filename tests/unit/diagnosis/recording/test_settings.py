"""Variables that `run` sets: by release, and never over the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdp_doctor.diagnosis.recording.settings import Setting, settings
from fsdp_doctor.facts.launch import parse_launch

TORCHRUN = ("torchrun", "--nproc-per-node", "2", "train.py")


def chosen(
    torch: tuple[int, int] | None, words: Sequence[str] = TORCHRUN, **variables: str
) -> dict[str, Setting]:
    launch = parse_launch(words, Path("/tmp"), variables)
    return {s.name: s for s in settings(torch, launch, words, variables, "/run", "/local")}


def test_torch_2_1_has_no_recorder() -> None:
    assert not [n for n in chosen((2, 1)) if n.startswith("TORCH_")]


def test_old_name_of_the_ring_before_2_8() -> None:
    found = chosen((2, 4))
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in found and "TORCH_FR_BUFFER_SIZE" not in found
    assert found["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"].value == "/local/pipe_"


def test_no_pipe_before_2_4() -> None:
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in chosen((2, 3))


def test_new_name_of_the_ring_from_2_8() -> None:
    found = chosen((2, 13))
    assert found["TORCH_FR_BUFFER_SIZE"].value == "2000" and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in found
    assert found["TORCH_FR_DUMP_TEMP_FILE"].value == "/run/flight/rank_"


def test_all_names_where_the_release_is_not_known() -> None:
    assert {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} <= set(chosen(None))


def test_the_users_value_is_kept_and_shown() -> None:
    found = chosen((2, 13), TORCH_FR_BUFFER_SIZE="50")
    assert found["TORCH_FR_BUFFER_SIZE"] == Setting(
        "TORCH_FR_BUFFER_SIZE", "50", found["TORCH_FR_BUFFER_SIZE"].why, kept=True
    )


def test_the_users_value_under_the_old_name_counts() -> None:
    assert "TORCH_FR_BUFFER_SIZE" not in chosen((2, 13), TORCH_NCCL_TRACE_BUFFER_SIZE="50")


def test_an_assignment_in_the_command_counts() -> None:
    words = ("env", "NCCL_DEBUG=INFO", *TORCHRUN)
    found = chosen((2, 13), words)
    assert found["NCCL_DEBUG"].kept and found["NCCL_DEBUG"].value == "INFO"
    assert "NCCL_DEBUG_FILE" not in found, "the user wants to see it on the console"


@pytest.mark.parametrize("option", ["--log-dir=x", "--tee", "--redirects=3", "-r"])
def test_options_for_logs_are_the_users(option: str) -> None:
    words = ("torchrun", option, "3", "train.py")
    assert not [n for n in chosen((2, 13), words) if n.startswith("PET_")]


@pytest.mark.parametrize(
    "words",
    [
        TORCHRUN,
        ("python", "-m", "torch.distributed.run", "train.py"),
        ("accelerate", "launch", "train.py"),
        ("srun", "-N", "2", "torchrun", "--nnodes", "2", "train.py"),
    ],
)
def test_ranks_get_logs_of_their_own_below_torchrun(words: tuple[str, ...]) -> None:
    found = chosen((2, 13), words)
    assert found["PET_LOG_DIR"].value == "/run/logs" and found["PET_TEE"].value == "3"


def test_no_log_folder_without_torchrun() -> None:
    assert not [n for n in chosen((2, 13), ("python", "train.py")) if n.startswith("PET_")]
