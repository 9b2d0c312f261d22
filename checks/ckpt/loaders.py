"""Which calls can read the format."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ckpt._speech import speak
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.loading import Cause, Loading


@check("CKP030", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def wrong_loader(facts: Facts, options: Options) -> Iterator[Finding]:
    """The calls that load cannot read this format.

    What: Dcp.load against files of torch.save, torch.load against DCP folders, and the reader that
        safetensors shards need.
    Why: Dcp.load says `metadata is None` of a folder of .pt files, which reads like damage.
    Fix: Load with the calls that the format needs, or convert.
    Sources: Torch/distributed/checkpoint/state_dict_loader.py, hf_storage.py.
    """
    yield from speak(facts, Cause.WRONG_LOADER)


@check("CKP031", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def whole_file(facts: Facts, options: Options) -> Iterator[Finding]:
    """Whole tensors need a call that shards them.

    What: Whole state dicts into sharded models.
    Why: Model.load_state_dict under FSDP2 fails with `got mixed torch.Tensor and DTensor`; reading the
        file on all ranks takes ranks-per-node times its size in host memory.
    Fix: Set_model_state_dict with full_state_dict=True and broadcast_from_rank0=True, and the optimizer
        in a call of its own.
    Sources: Torch/distributed/checkpoint/state_dict.py; measured with torch 2.13.
    """
    yield from speak(facts, Cause.WHOLE_FILE)


@check("CKP032", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def weights_only(facts: Facts, options: Options) -> Iterator[Finding]:
    """torch.load refuses classes in the file.

    What: Globals in the pickles that weights_only=True does not let pass.
    Why: Since torch 2.6 that is the default: ShardedTensors, argparse and omegaconf objects beside the
        weights stop the load.
    Fix: Weights_only=False if you trust the writer, or torch.serialization.add_safe_globals.
    Sources: Torch 2.6 release notes; torch/_weights_only_unpickler.py.
    """
    yield from speak(facts, Cause.WEIGHTS_ONLY)


@check("CKP033", Row.LOAD, needs=(Loading,), tags=("checkpoint",))
def framework(facts: Facts, options: Options) -> Iterator[Finding]:
    """The checkpoint belongs to another framework.

    What: Layouts of DeepSpeed and Megatron.
    Why: Their shards are cut by their own optimizer and named by their own model: torch's loaders find no
        metadata or no key.
    Fix: Load with the framework, or export whole weights with its own script.
    Sources: DeepSpeed zero_to_fp32.py; Megatron-LM dist_checkpointing.
    """
    yield from speak(facts, Cause.FRAMEWORK)
