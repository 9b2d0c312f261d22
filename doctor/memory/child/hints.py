"""What an error in the user's code means where there is no GPU, no network, no input and no value."""

from __future__ import annotations

import os
import traceback

from .subclasses import failed

NO_GPU = ("not compiled", "not linked", "nvidia driver", "_cuda_", "a tensor is put on")
WHILE_BUILT = "while the model is built"
"""What a refused connection says; libraries wrap the exception in ones of their own."""
OFFLINE = (
    WHILE_BUILT,
    "offline",
    "couldn't connect",
    "max retries",
    "outgoing traffic has been disabled",
    "no internet connection",
)
NO_VALUES = (
    ".numpy() is not supported for tensor subclasses",
    "can't convert meta tensor to numpy",
    "cannot be called on meta tensors",
    "cannot copy out of meta tensor",
)

PIPELINE = "pipeline parallelism is not modelled: return the module of one stage"
GPU = "it asks for a GPU: leave the device to the doctor, which places the module and the batch"
NETWORK = "it needs the network: build the model from a configuration, without downloading weights"
REAL = "it builds real tensors: leave the device to the doctor, under which they take no memory"
INPUT = "it reads standard input, which is empty here: give what it asks for with --model-args"
VALUES = "tensors have shapes and no values here"
UNBUILT = f"{VALUES}: make the ones that the model reads with device='cpu'"
WITHOUT = {"gpu": GPU, "network": NETWORK, "input": INPUT, "values": VALUES, "memory": REAL}
"""What to do where a replay lacks something."""
DEVICE = "it is called with the device and the arguments of --batch-args"


PLAIN = "let the function return the plain module, which the doctor shards"
OWN_LAYERS = "no form that works on shapes alone: take torch's own layers"
FOREIGN = {
    "deepspeed": f"DeepSpeed shards and steps by its own rules: {PLAIN}",
    "megatron": "Megatron's layers hold a part of a layer: give torch's own layers of that size",
    "colossalai": f"ColossalAI shards by its own rules: {PLAIN}",
    "fairscale": f"fairscale shards by its own rules: {PLAIN}",
    "transformer_engine": f"its kernels have {OWN_LAYERS}",
    "bitsandbytes": f"its quantised layers have {OWN_LAYERS}",
    "torchao": f"its quantised and float8 layers have {OWN_LAYERS}",
}
"""Packages whose modules are not replayed."""
TORCHS = {
    "distributed/pipelining": PIPELINE,
    "ao/quantization": f"quantised layers have {OWN_LAYERS}",
    "nn/attention/flex_attention": "FlexAttention is compiled for a GPU: take scaled_dot_product_attention",
}
"""Parts of torch whose errors say that they do not work on shapes alone."""


def unmodelled(error: BaseException) -> str:
    """Why an error comes from a package, part of torch or subclass that is not replayed; "" for others."""
    for frame in traceback.extract_tb(error.__traceback__):
        name = frame.filename.replace(os.sep, "/")
        for packages in (FOREIGN, {f"torch/{part}": said for part, said in TORCHS.items()}):
            for part, why in packages.items():
                if f"/{part}/" in name or name.endswith(f"/{part}.py"):
                    return why
    subclass = failed(error, said(error))
    return f"the tensor subclass {subclass} has {OWN_LAYERS}" if subclass else ""


def hint(error: BaseException, what: str = "") -> str:
    """What to do about an error, in words that follow it; "" where its own text says it."""
    found = unmodelled(error) or WITHOUT.get(lacking(error), "")
    if found == VALUES and what == "model":
        found = UNBUILT
    elif (
        not found
        and what == "batch"
        and isinstance(error, TypeError)
        and "positional argument" in said(error)
    ):
        found = DEVICE
    return f" ({found})" if found else ""


def lacking(error: BaseException) -> str:
    """What an error asks for that a job has and a replay has not: gpu, network, …; "" for any other error."""
    lower = f"{type(error).__name__}: {said(error)}".lower()
    if "_cuda_" in lower or ("cuda" in lower and any(w in lower for w in NO_GPU)):
        return "gpu"
    if any(w in lower for w in OFFLINE):
        return "network"
    if isinstance(error, EOFError):
        return "input"
    if any(w in lower for w in NO_VALUES):
        return "values"
    return "memory" if isinstance(error, MemoryError) or "defaultcpuallocator" in lower else ""


def said(error: BaseException) -> str:
    """An exception's own text, also where asking for it raises."""
    try:
        return str(error)
    except Exception as another:
        return f"its text cannot be had: {type(another).__name__}"
