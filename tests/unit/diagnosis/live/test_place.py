"""Where a process stands."""

from __future__ import annotations

import pytest

from fixtures.cases.live import BARRIER, LOADER, MAIN, PACK, REDUCE, SITE
from fsdp_doctor.diagnosis.live.place import of_frames, place, same
from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import CODE, COLLECTIVE, COMPILE, DATA, GPU, LOCK, SAVE, UNSEEN, Thread

TORCH = f"{SITE}/torch"
STEP = Frame("train_step", "/home/me/train.py", 41)


def at(*frames: Frame) -> tuple[str, str | None, str | None]:
    found = of_frames((MAIN, *frames))
    return (
        found.kind,
        found.user.function if found.user is not None else None,
        found.library.function if found.library is not None else None,
    )


def test_a_collective_is_named_as_the_program_calls_it() -> None:
    assert at(*REDUCE) == (COLLECTIVE, "step", "all_reduce")
    assert at(*BARRIER) == (COLLECTIVE, "save_config", "barrier")


def test_an_all_gather_inside_fsdp() -> None:
    inner = (
        STEP,
        Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1784),
        Frame("pre_forward", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 551),
        Frame("unshard", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 407),
        Frame("foreach_all_gather", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 364),
    )
    assert at(*inner)[:2] == (COLLECTIVE, "train_step")


def test_own_code() -> None:
    assert at(*PACK) == (CODE, "pack", None)


def test_a_loader_that_waits_for_its_worker() -> None:
    assert at(*LOADER)[0] == DATA


@pytest.mark.parametrize("name", ["fetch_batch", "_fetch_row", "get_batch", "next_sample", "__getitem__"])
def test_own_functions_that_load(name: str) -> None:
    assert at(Frame(name, "/home/me/data.py", 3))[0] == DATA


@pytest.mark.parametrize("name", ["save_checkpoint", "_save", "write_checkpoint"])
def test_own_functions_that_save(name: str) -> None:
    assert at(Frame(name, "/home/me/io.py", 3))[0] == SAVE


@pytest.mark.parametrize("name", ["write_report", "evaluate", "savings", "prefetching_done"])
def test_names_that_only_look_like_it(name: str) -> None:
    assert at(Frame(name, "/home/me/io.py", 3))[0] in (CODE, SAVE) and at(Frame(name, "/x.py", 3))[0] != DATA


def test_writing_a_sharded_checkpoint() -> None:
    assert at(STEP, Frame("save", f"{TORCH}/distributed/checkpoint/state_dict_saver.py", 100))[0] == SAVE


def test_methods_count_by_their_own_name() -> None:
    assert at(Frame("Images.__getitem__", "/home/me/data.py", 3))[0] == DATA
    loader = Frame("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/utils/data/dataloader.py", 1310)
    assert at(STEP, loader)[0] == DATA
    wait = Frame(
        "FSDPParamGroup.wait_for_unshard", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 430
    )
    assert at(STEP, wait)[0] == COLLECTIVE
    assert at(STEP, Frame("Condition.wait", "/usr/lib/python3.11/threading.py", 320))[0] == LOCK


def test_waiting_for_the_gpu() -> None:
    assert at(STEP, Frame("synchronize", f"{TORCH}/cuda/__init__.py", 900))[0] == GPU


def test_compiling() -> None:
    assert at(STEP, Frame("compile_fx", f"{TORCH}/_inductor/compile_fx.py", 12))[0] == COMPILE


def test_waiting_for_a_thread() -> None:
    assert at(STEP, Frame("wait", "/usr/lib/python3.11/threading.py", 320)) == (LOCK, "train_step", "wait")


def test_backward_that_waits_inside_the_engine() -> None:
    inner = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 825)
    assert at(STEP, Frame("backward", f"{TORCH}/_tensor.py", 623), inner)[0] == COLLECTIVE


def test_backward_whose_hooks_run_in_another_thread() -> None:
    main = Thread(
        (MAIN, STEP, Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 825)), "MainThread", True
    )
    engine = Thread(
        (
            Frame("_post_backward", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_state.py", 400),
            Frame("reduce_scatter_tensor", f"{TORCH}/distributed/distributed_c10d.py", 4700),
        ),
        "",
    )
    found = place((main, engine))
    assert found.kind == COLLECTIVE and found.user == STEP
    assert found.library is not None and found.library.function == "reduce_scatter_tensor"


def test_a_training_program_that_is_an_installed_package() -> None:
    own = Frame("train_loop", f"{SITE}/megatrain/loop.py", 9)
    found = of_frames((own, *REDUCE[1:]))
    assert found.kind == COLLECTIVE and found.user == own


def test_a_folder_called_torch_is_no_torch() -> None:
    assert at(Frame("pack", "/home/me/torch/packing.py", 2)) == (CODE, "pack", None)


def test_nothing_is_seen_without_threads() -> None:
    assert place(()).kind == UNSEEN


def test_the_doctors_own_thread_is_passed_over() -> None:
    own = Thread((Frame("serve", "/x/sitecustomize.py", 1),), "fsdp-doctor", False)
    assert place((own, Thread((MAIN, *PACK), "MainThread", True))).kind == CODE


def test_the_same_line_in_the_same_call_is_the_same_place() -> None:
    a, b = of_frames((MAIN, *REDUCE)), of_frames((MAIN, *BARRIER))
    assert same(a, of_frames((MAIN, *REDUCE))) and not same(a, b)
