"""What goes wrong while a checkpoint is saved."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.SAVE)
V, C, R, L, K = Kind.VICTIM, Kind.CONTEXT, Kind.ROOT, Kind.LIKELY, Kind.CONFIRMS

SAVING: tuple[Signature, ...] = (
    _s(
        "LOG501", R, 94, "Out of memory while a full state dict was gathered",
        "Failed to clone() tensor with name", r"Failed to clone\(\) tensor with name (?P<fqn>\S+?)(?: on rank (?P<bad>\d+))?\. ",
        scope=Scope.NAMED, says="out of memory while gathering the full state dict: {fqn} could not be cloned, so the checkpoint is broken and incomplete",
        why="FSDP gathers every parameter on every GPU for a full state dict and only warns when a clone fails; the saved file then holds invalid memory.",
        fix="Delete that checkpoint; save a SHARDED_STATE_DICT (DCP), or a full one with FullStateDictConfig(offload_to_cpu=True, rank0_only=True)", sources="torch/distributed/fsdp/_state_dict_utils.py",
        sample="UserWarning: Failed to clone() tensor with name lm_head.weight on rank 0. This may mean that this state_dict entry could point to invalid memory",
    ),
    _s(
        "LOG502", R, 94, "The disk is full",
        ("No space left on device", "Disk quota exceeded", "errno 28", "[Errno 122]", "[Errno 28]"),
        r"^(?!.*(?:posix_fallocate|/dev/shm|nccl-shm)).*(?:No space left on device|errno 28\b|Errno 28\b|[Dd]isk quota exceeded|Errno 122\b)(?:.*?'(?P<path>/[^']+)')?",
        scope=Scope.HOST, says="no space left on the device while writing {path}", why="The file system or the quota of the checkpoint folder, or of a temporary folder, is full; the file that was being written is incomplete.",
        fix="Free space (and inodes), keep fewer checkpoints, delete the incomplete one", command="df -h DIR; df -i DIR; quota -s", sources="errno 28, 122",
        sample="OSError: [Errno 28] No space left on device: '/ckpt/step_100/__0_0.distcp'",
    ),
    _s(
        "LOG503", R, 90, "Writing a checkpoint file failed midway",
        ("unexpected pos ", "PytorchStreamWriter failed"), r"unexpected pos (?P<p>\d+) vs (?P<q>\d+)|PytorchStreamWriter failed writing file (?P<path>\S+)",
        says="a checkpoint file could not be written to its end", why="The disk or quota filled up, or the network file system failed, while the file was written.",
        fix="Check space and quota of the folder, delete the incomplete file, and save again", command="df -h DIR; df -i DIR", sources="caffe2/serialize/inline_container.cc",
        sample="RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
    ),
    _s(
        "LOG504", R, 92, "The folder of the checkpoint does not exist",
        "Parent directory ", r"Parent directory (?P<path>\S+) does not exist",
        says="the folder {path} does not exist on this rank's machine", why="Only one rank made the folder, or the path is local to a node.",
        fix="Create the folder on every rank before saving, and use a shared file system", command="mkdir -p DIR", sources="torch.serialization",
        sample="RuntimeError: Parent directory /no/such/dir does not exist.",
    ),
    _s(
        "LOG505", R, 85, "The file system refused",
        ("PermissionError", "Read-only file system", "Stale file handle", "Input/output error", "Remote I/O error"),
        r"(?:PermissionError: )?\[Errno (?:13|30|116|5|121)\] (?P<what>[\w /-]+)(?:: '(?P<path>[^']+)')?|(?P<what2>Read-only file system|Stale file handle|Input/output error)",
        says="the file system refused: {what} {path}", why="Rights, a read-only mount, a network file system whose server went away, or a failing disk.",
        fix="Check ownership and mount of the path on that node; remount a stale network file system", command="ls -ld DIR; mount | grep DIR; dmesg -T | tail", sources="errno",
        sample="PermissionError: [Errno 13] Permission denied: '/ckpt/step_100'",
    ),
    _s(
        "LOG506", K, 60, "A distributed checkpoint names the ranks that failed",
        "CheckpointException ranks:", r"CheckpointException ranks: ?dict_keys\(\[(?P<ranks>[\d, ]*)\]\)",
        why="DCP collects the exception of every failing rank; the last line of each inner traceback is the cause.",
        fix="Read the last line of the inner traceback", sources="torch/distributed/checkpoint/api.py",
        sample="torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3, 5])",
    ),
    _s(
        "LOG507", R, 85, "A parameter was read while its memory was freed",
        ("invalid python storage", "setStorage: sizes", "data is not allocated yet"),
        r"Attempted to access the data pointer on an invalid python storage|setStorage: sizes .* storage of size 0|The tensor has a non-zero number of elements, but its data is not allocated yet",
        scope=Scope.JOB, why="FSDP frees a unit's parameters outside its forward and backward; saving or reading them then finds no memory.",
        fix="Save with get_model_state_dict(options=StateDictOptions(full_state_dict=True, cpu_offload=True)) or inside FSDP.state_dict_type", sources="c10 StorageImpl; FSDP",
        sample="RuntimeError: Attempted to access the data pointer on an invalid python storage.",
    ),
    _s(
        "LOG508", R, 80, "The wrapped module was copied or pickled",
        ("does not support deepcopy", "cannot pickle", "an't pickle", "an't get local object"), r"FSDP does not support deepcopy|cannot pickle (?P<what>.*)|Can.t pickle (?P<what2>.*)|Can.t get local object (?P<what3>.*)",
        scope=Scope.JOB, says="an object cannot be pickled or copied: {what}", why="Modules wrapped by FSDP, hooks and process groups cannot be pickled; nor can local functions for DataLoader workers.",
        fix="Save state dicts only, and define what workers need at the top of a module", sources="torch/distributed/fsdp",
        sample="AssertionError: FSDP does not support deepcopy. Please use state dict for serialization.",
    ),
    _s(
        "LOG509", R, 85, "The kind of state dict does not fit the wrapping",
        ("LOCAL_STATE_DICT", "can only be used when parameters are flatten"),
        r"LOCAL_STATE_DICT.*not compatible|not compatible with LOCAL_STATE_DICT|``(?:local|sharded)_state_dict`` can only be used when parameters are flatten",
        scope=Scope.JOB, why="LOCAL_STATE_DICT holds flat shards and fits one wrapping, without a device mesh, only.",
        fix="Use SHARDED_STATE_DICT", sources="torch/distributed/fsdp/_state_dict_utils.py", sample="DeviceMesh is not compatible with LOCAL_STATE_DICT.",
    ),
    _s(
        "LOG510", R, 85, "The optimizer does not know a parameter",
        ("is not in the optimizer state", "is not in the output state"), r"(?P<key>\S+) is not in the (?:optimizer|output) state\. The FSDPParamInfo has the param keys",
        scope=Scope.JOB, says="the optimizer's state has no entry {key}", why="The optimizer was made before wrapping, has never stepped, or leaves out frozen parameters.",
        fix="Make the optimizer after wrapping, and step once before its state is saved or loaded", sources="torch/distributed/fsdp/_optim_utils.py",
        sample="{key} is not in the optimizer state. The FSDPParamInfo has the param keys [...]",
    ),
    _s(
        "LOG511", L, 40, "An optimizer state that FSDP cannot process",
        "that FSDP cannot process", r"Found a optim state, (?P<key>.+?), that FSDP cannot process",
        scope=Scope.JOB, says="FSDP cannot save the optimizer state {key}", why="A custom optimizer keeps state of another shape than its parameters.", fix="Keep such state as tensors of the parameter's shape or as scalars", sources="torch/distributed/fsdp/_optim_utils.py",
        sample="Found a optim state, foo, that FSDP cannot process.",
    ),
    _s(
        "LOG512", R, 85, "Tied weights cannot be written to safetensors",
        "Some tensors share memory", r"Some tensors share memory, this will lead to duplicate memory on disk(?:.*?(?P<what>\[.*\]))?",
        scope=Scope.JOB, why="Two names share one tensor (tied embeddings), and safetensors stores each tensor once.",
        fix="Use safetensors.torch.save_model, or drop one of the tied names", sources="safetensors.torch",
        sample="RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk",
    ),
    _s(
        "LOG513", R, 72, "A checkpoint folder exists already",
        ("Checkpoint already exists", "File exists"), r"Checkpoint already exists|\[Errno 17\] File exists: '(?P<path>[^']+)'",
        says="{path} exists already", why="Several ranks create the same folder without exist_ok, or an earlier checkpoint is not to be overwritten.",
        fix="Create it with exist_ok=True, or choose another folder for each step", sources="errno 17; DCP FileSystemWriter(overwrite=False)",
        sample="FileExistsError: [Errno 17] File exists: '/ckpt/step_100'",
    ),
)
