"""What goes wrong while a checkpoint is loaded."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.LOAD)
V, C, R, L, K = Kind.VICTIM, Kind.CONTEXT, Kind.ROOT, Kind.LIKELY, Kind.CONFIRMS

LOADING: tuple[Signature, ...] = (
    _s(
        "LOG601", R, 92, "weights_only refuses a file",
        "Weights only load failed", r"Weights only load failed",
        scope=Scope.JOB, says="torch.load(weights_only=True) refuses this file", why="Since torch 2.6 torch.load allows tensors and plain types only; the file holds another class, or is no torch file.",
        fix="Allow the class that is named with torch.serialization.add_safe_globals([...]), or load a file that you trust with weights_only=False", sources="torch.serialization",
        sample="_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value",
    ),
    _s(
        "LOG602", C, 30, "The class that weights_only refuses",
        "Unsupported ", r"Unsupported (?:global: GLOBAL (?P<cls>[\w.]+)|operand (?P<op>\d+)|class (?P<cls2>[\w.]+))",
        why="It names what the file holds.", fix="add_safe_globals for a class; an unsupported operand means that the file is no pickle of torch (a Git LFS pointer, text)", sources="torch/_weights_only_unpickler.py",
        sample="WeightsUnpickler error: Unsupported global: GLOBAL numpy.core.multiarray._reconstruct was not an allowed global by default.",
    ),
    _s(
        "LOG603", R, 92, "A checkpoint file is incomplete",
        ("failed finding central directory", "PytorchStreamReader failed", "unexpected EOF, expected", "Ran out of input", "invalid load key", "HeaderTooLarge", "InvalidHeaderDeserialization", "MetadataIncompleteBuffer", "InvalidHeader"),
        r"failed finding central directory|PytorchStreamReader failed (?:reading zip archive|reading file|locating file)|unexpected EOF, expected (?P<n>\d+) more bytes|Ran out of input|invalid load key, (?P<key>\S+)|SafetensorError: .*(?:HeaderTooLarge|InvalidHeader\w*|MetadataIncompleteBuffer)",
        scope=Scope.JOB, says="a checkpoint file is incomplete or damaged", why="The job was killed while saving, the disk was full, or the copy was cut.",
        fix="Take the previous checkpoint, delete this one, and let the program write to a temporary name and rename", command="fsdp-doctor ckpt inspect DIR --verify", sources="torch.serialization, safetensors",
        sample="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory.",
    ),
    _s(
        "LOG604", R, 90, "A parameter has another size than the checkpoint",
        "size mismatch for ", r"size mismatch for (?P<fqn>\S+): copying a param with shape torch\.Size\(\[(?P<ck>[^\]]*)\]\) from checkpoint, the shape in current model is torch\.Size\(\[(?P<md>[^\]]*)\]\)",
        scope=Scope.JOB, says="{fqn} is [{ck}] in the checkpoint and [{md}] in the model", why="Another model configuration (a resized vocabulary), or flat or sharded parameters are loaded into whole ones.",
        fix="Build the model with the checkpoint's configuration (resize embeddings first); load a full state dict before wrapping or with set_model_state_dict", sources="torch.nn.Module.load_state_dict",
        sample="size mismatch for weight: copying a param with shape torch.Size([2, 3]) from checkpoint, the shape in current model is torch.Size([3, 3]).",
    ),
    _s(
        "LOG605", R, 85, "Names of parameters differ from the checkpoint",
        ("issing key(s) in state_dict", "nexpected key(s) in state_dict"), r"Missing key\(s\) in state_dict: (?P<miss>.*)|Unexpected key\(s\) in state_dict: (?P<un>.*)",
        scope=Scope.JOB, says="parameter names of model and checkpoint differ", why="A wrapper added or took a prefix (module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module., base_model.model.); _flat_param means flat shards of FSDP1.",
        fix="Strip or add the prefix, or load with torch.distributed.checkpoint.state_dict, which knows the wrappers' names", sources="torch.nn.Module.load_state_dict",
        sample="Unexpected key(s) in state_dict: \"module.weight\".",
    ),
    _s(
        "LOG606", R, 90, "The distributed checkpoint lacks a key",
        "Missing key in checkpoint state_dict", r"Missing key in checkpoint state_dict: (?P<fqn>.+?)\.?$",
        scope=Scope.JOB, says="the checkpoint has no entry {fqn}", why="A new parameter, another prefix, optimizer state in another layout, or a part that was never saved.",
        fix="Compare the names (`fsdp-doctor ckpt inspect`), save with get_state_dict, or allow it with DefaultLoadPlanner(allow_partial_load=True)", command="fsdp-doctor ckpt inspect DIR", sources="default_planner.py",
        sample="RuntimeError: Missing key in checkpoint state_dict: m.zzz.",
    ),
    _s(
        "LOG607", R, 90, "A tensor has another size than in the distributed checkpoint",
        "Size mismatch between saved", r"Size mismatch between saved (?:torch\.Size\()?\[?(?P<ck>[\d, ]*)\]?\)? and current: (?:torch\.Size\()?\[?(?P<md>[\d, ]*)\]?\)? for (?P<fqn>\S+)",
        scope=Scope.JOB, says="{fqn} is [{ck}] in the checkpoint and [{md}] in the model", why="Another model configuration; or one side is flat (1-D shards of FSDP1, LOCAL_STATE_DICT) and the other whole.",
        fix="Build the model with the checkpoint's configuration; save and load with the same state_dict_type (SHARDED or FULL)", command="fsdp-doctor ckpt inspect DIR", sources="default_planner.py",
        sample="ValueError: Size mismatch between saved torch.Size([3, 3]) and current: torch.Size([4, 3]) for m.weight",
    ),
    _s(
        "LOG608", R, 92, "A file of the distributed checkpoint is missing",
        (".metadata", ".distcp"), r"(?:No such file or directory|FileNotFoundError|does not exist)[^'\"]*['\"](?P<path>[^'\"]*(?:\.metadata|\.distcp))['\"]",
        scope=Scope.JOB, says="{path} is missing: the checkpoint is incomplete", why="Rank 0 writes .metadata last: without it the save never finished. A missing .distcp means folders local to nodes, or an incomplete copy.",
        fix="Resume from the previous step that has a .metadata, delete the incomplete one, and save to a file system that all nodes share", command="ls -a DIR/*/.metadata", sources="torch/distributed/checkpoint/filesystem.py",
        sample="FileNotFoundError: [Errno 2] No such file or directory: 'nock/.metadata'",
    ),
    _s(
        "LOG609", R, 90, "The optimizer's groups differ from the checkpoint",
        ("doesn't match the size of optimizer", "different number of parameter groups"), r"parameter group that doesn't match the size of optimizer's group|different number of parameter groups",
        scope=Scope.JOB, says="the optimizer has other parameter groups than the checkpoint", why="Other groups or frozen parameters than at save, or flat optimizer state of FSDP1.",
        fix="Rebuild the same groups, or load with FSDP.optim_state_dict_to_load or set_optimizer_state_dict", sources="torch.optim.Optimizer",
        sample="ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
    ),
    _s(
        "LOG610", L, 50, "The optimizer's state lacks a key",
        "KeyError: ", r"^KeyError: '?(?P<key>state|param_groups|exp_avg|exp_avg_sq|step|optimizer|model|None)'?$",
        scope=Scope.JOB, says="the checkpoint's dictionary has no {key}", why="It is a dictionary of another kind, or the state dict type was not set before loading.",
        fix="Look at what was saved; prepare the model first, then load", sources="transformers#26159", sample="KeyError: None",
    ),
    _s(
        "LOG611", R, 90, "A checkpoint wants a GPU that is not there",
        "Attempting to deserialize object on", r"Attempting to deserialize object on (?:a )?CUDA device(?: (?P<d>\d+) but torch\.cuda\.device_count\(\) is (?P<n>\d+))?",
        scope=Scope.JOB, says="the file holds tensors of CUDA device {d}, and this process sees {n}", why="Tensors were saved on cuda:k.", fix="Load with map_location=\"cpu\"", sources="torch.serialization",
        sample="RuntimeError: Attempting to deserialize object on CUDA device 7 but torch.cuda.device_count() is 4.",
    ),
    _s(
        "LOG612", K, 45, "The checkpoint has no global metadata",
        "Global metadata is not found", r"Global metadata is not found\. Falling back to rank local metadata",
        why="Rank 0 writes .metadata last: the save did not finish.", fix="Resume from the previous step", sources="torch 2.8 on, filesystem.py",
        sample="Global metadata is not found. Falling back to rank local metadata.",
    ),
    _s(
        "LOG613", L, 55, "A parameter was skipped while loading",
        "Did not find param with FQN", r"Did not find param with FQN (?P<fqn>\S+?), skipping it",
        scope=Scope.JOB, says="{fqn} was not in the checkpoint and was not loaded", why="The model trains on with fresh weights there.", fix="Treat it as an error: compare the names", sources="torch/distributed/fsdp/_state_dict_utils.py",
        sample="Did not find param with FQN layers.0.w, skipping it. The weight will not be filled",
    ),
    _s(
        "LOG614", C, 30, "Weights were not initialised from the checkpoint",
        ("were not initialized from the model checkpoint", "were not used when initializing"), r"Some weights of .* were not (?:initialized from the model checkpoint|used when initializing)",
        why="A new head, or names that differ.", fix="Check that only the expected names are listed", sources="transformers",
        sample="Some weights of LlamaForCausalLM were not initialized from the model checkpoint",
    ),
    _s(
        "LOG615", R, 90, "Ranks resumed from different states",
        "has different values for", r"Rank (?P<bad>\d+) has different values for (?P<k>[\w.]+): (?P<v>[\d.eE+-]*\d)\.? Other ranks: (?P<o>[\d.eE+-]*\d)",
        scope=Scope.NAMED, says="rank {bad} resumed with {k} {v}, the others with {o}", why="Each rank chose its own checkpoint, and they are not of one step.",
        fix="Let one rank choose the step and broadcast it; take the newest step that all ranks have", sources="pytorch#113765",
        sample="Rank 1 has different values for step: 8016.0. Other ranks: 7870.0",
    ),
    _s(
        "LOG616", R, 88, "A checkpoint path does not exist",
        ("CheckpointNotFound", "heckpoint does not exist", "an't find a valid checkpoint", "No valid checkpoint found", "checkpoint_id", "checkpoint directory"),
        r"Can.t find a valid checkpoint at (?P<path>\S+)|[Cc]heckpoint (?:directory |path |file )?(?P<path2>\S+ )?(?:does not exist|not found)|No valid checkpoint found",
        scope=Scope.JOB, says="there is no checkpoint at {path}", why="The path is wrong, local to another node, or the save never finished.", fix="Check the path on every node", command="ls -la DIR", sources="transformers trainer, torchtitan",
        sample="ValueError: Can't find a valid checkpoint at /ckpt/step_100",
    ),
    _s(
        "LOG617", R, 84, "The checkpoint was made for another world size",
        ("world size", "world_size", "number of ranks", "degree"), r"(?:checkpoint|saved|state[_ ]dict).{0,80}world[_ ]?size.{0,40}(?P<a>\d+).{0,60}?(?P<b>\d+)|loaded (?:flat|sharded).{0,60}world[_ ]?size",
        gate=r"(?:checkpoint|saved|state[_ ]dict|loaded).{0,100}world[_ ]?size", scope=Scope.JOB, says="the checkpoint belongs to another world size", why="LOCAL_STATE_DICT and per-rank files fit only the world size they were saved with.",
        fix="Load on as many ranks as it was saved on, or convert it", command="fsdp-doctor ckpt check DIR --world-size N", sources="FSDP, frameworks",
        sample="RuntimeError: checkpoint was saved with world_size 8 but is loaded with world_size 4",
    ),
)
