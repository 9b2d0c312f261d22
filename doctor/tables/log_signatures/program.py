"""FSDP's own complaints about the program, and numbers that went wrong."""

from __future__ import annotations

from fsdp_doctor.findings import Row
from fsdp_doctor.tables.log_signatures.model import Kind, Scope, Signature, family

_s = family(Row.START)
V, C, R, L, K = Kind.VICTIM, Kind.CONTEXT, Kind.ROOT, Kind.LIKELY, Kind.CONFIRMS
J = Scope.JOB

PROGRAM: tuple[Signature, ...] = (
    _s(
        "LOG701", R, 92, "Parameters of one FSDP unit have different dtypes",
        "uniform dtype but got", r"(?:Must flatten tensors with|`?FlatParameter`? requires) uniform dtype but got (?P<a>\S+) and (?P<b>\S+)",
        scope=J, says="one FSDP unit mixes dtypes {a} and {b}", why="FSDP1 flattens a unit's parameters to one tensor of one dtype: LoRA adapters or norms in float32 inside a bfloat16 model, or bitsandbytes storage of another type.",
        fix="Cast the odd parameters, wrap them separately, set bnb_4bit_quant_storage (quant_storage) to the model's dtype, or use FSDP2, which allows mixing", sources="torch/distributed/fsdp/_flat_param.py",
        sample="ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
    ),
    _s(
        "LOG702", R, 92, "One FSDP unit mixes frozen and trainable parameters",
        "uniform `requires_grad` when", r"Must flatten tensors with uniform `requires_grad` when",
        scope=J, why="FSDP1 flattens a unit's parameters to one tensor, which is trainable or not as a whole.",
        fix="Pass use_orig_params=True to FSDP, or wrap frozen and trainable modules separately", sources="torch/distributed/fsdp/_flat_param.py",
        sample="ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`",
    ),
    _s(
        "LOG703", R, 90, "Integer parameters cannot be sharded",
        "Cannot flatten integer dtype tensors", r"Cannot flatten integer dtype tensors",
        scope=J, why="Quantised weights are stored as integers.", fix="Use a float storage type (bnb_4bit_quant_storage=torch.bfloat16)", sources="_flat_param.py",
        sample="ValueError: Cannot flatten integer dtype tensors",
    ),
    _s(
        "LOG704", R, 85, "Parameters were changed after wrapping",
        ("Cannot writeback when the", "needs writeback in"), r"Cannot writeback when the (?P<w>parameter|gradient) shape changes|needs writeback in",
        scope=J, why="resize_token_embeddings or an initialisation ran after FSDP had flattened the parameters.", fix="Do it before wrapping, or inside FSDP.summon_full_params", sources="_flat_param.py",
        sample="RuntimeError: Cannot writeback when the parameter shape changes",
    ),
    _s(
        "LOG705", R, 85, "Parameters changed between forward and backward",
        "changing the parameters between forward and backward", r"FSDP does not support changing the parameters between forward and backward",
        scope=J, why="A hook or an in-place swap replaced a parameter.", fix="Leave the parameters alone between forward and backward", sources="_flat_param.py",
        sample="FSDP does not support changing the parameters between forward and backward for HandleShardingStrategy.SHARD_GRAD_OP",
    ),
    _s(
        "LOG706", R, 88, "Plain tensors are mixed with DTensors",
        "got mixed torch.Tensor and DTensor", r"(?:(?P<op>[\w.]+): )?got mixed torch\.Tensor and DTensor",
        scope=J, row=None, says="{op} got plain tensors together with DTensors", why="Some parameters lie outside fully_shard, or plain optimizer state or weights were loaded into a sharded model; clip_grad_norm_ or a foreach optimizer then mixes both.",
        fix="Shard the rest too (fully_shard on the root), or treat the parameters outside separately (own optimizer group, foreach=False, clip apart); load with set_model_state_dict", sources="pytorch#153354",
        sample="RuntimeError: aten._foreach_mul_.Tensor: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor",
    ),
    _s(
        "LOG707", R, 88, "Parameters of one FSDP2 unit have different dtypes",
        "FSDP expects uniform", r"FSDP expects uniform (?P<w>original parameter|reduce) dtype but got (?P<d>.*)",
        scope=J, says="one fully_shard unit mixes dtypes {d}", why="A unit is gathered and reduced in one dtype.", fix="Give each fully_shard unit one dtype, or set a mixed-precision policy", sources="_fsdp_param_group.py",
        sample="AssertionError: FSDP expects uniform original parameter dtype but got {torch.float32, torch.bfloat16}",
    ),
    _s(
        "LOG708", R, 90, "Parameters are still on the meta device",
        ("materialized from meta device", "Cannot copy out of meta tensor"), r"should be materialized from meta device before training.*?: (?P<p>.*)|Cannot copy out of meta tensor",
        scope=J, says="parameters are still on the meta device: {p}", why="The model was built on the meta device and never got memory.", fix="Call model.to_empty(device=\"cuda\") and initialise or load the weights before the first step", sources="_fsdp_param_group.py",
        sample="RuntimeError: FSDP parameters should be materialized from meta device before training, but the following were still on meta device: ['a.b']",
    ),
    _s(
        "LOG709", R, 88, "Parameters are on another device than CPU offload needs",
        ("materialized on CPU when enabling CPU offloading", "An FSDP-managed module"), r"should be materialized on CPU when enabling CPU offloading|An FSDP-managed module (?:unexpectedly has parameters on|with parameter CPU offloading enabled)",
        scope=J, why="CPU offload wants the sharded parameters on the CPU, or a weight was moved after wrapping.", fix="Load the weights to the CPU, and do not move the model after wrapping", sources="FSDP1 and FSDP2",
        sample="RuntimeError: FSDP parameters should be materialized on CPU when enabling CPU offloading.",
    ),
    _s(
        "LOG710", R, 85, "A wrapped submodule was called before the root",
        ("running forward through the root module first", "has already been lazily initialized"), r"requires running forward through the root module first|state has already been lazily initialized for (?P<m>\S+)",
        scope=J, why="The root sets up all units in its first forward; a submodule was called alone, or wrapped after the first step.", fix="Call the root module, and wrap everything before the first step", sources="_fsdp_state.py",
        sample="RuntimeError: FSDP state has already been lazily initialized for layers.0",
    ),
    _s(
        "LOG711", R, 88, "A dimension cannot be sharded evenly",
        ("does not support uneven sharding", "requires even sharding"), r"FSDP does not support uneven sharding on dim (?P<d>\d+)|requires even sharding",
        scope=J, says="dimension {d} cannot be sharded evenly over the ranks", why="Sharding on a dimension other than 0 needs a size that the world size divides.", fix="Choose dimension 0 or another one in shard_placement_fn", sources="_fsdp_param.py",
        sample="NotImplementedError: FSDP does not support uneven sharding on dim 1: torch.Size([3, 5]) (world size: 4)",
    ),
    _s(
        "LOG712", R, 65, "Ranks used different parameters in one step",
        "Only some but not all ranks have a", r"Only some but not all ranks have a `?None`? `?FlatParameter`? gradient",
        row="nccl", scope=J, why="A branch on data left parameters unused on some ranks: the next step's collectives can differ.", fix="Use the same modules on all ranks in each step (a dummy input where there is none)", sources="_flat_param.py",
        sample="[Rank 1] Only some but not all ranks have a `None` `FlatParameter` gradient",
    ),
    _s(
        "LOG713", R, 70, "The order of forward differs between ranks",
        "Forward order differs", r"Forward order differs (?P<how>across ranks|from that of the first iteration)(?:.*rank (?P<a>\d+) .*?while rank (?P<b>\d+))?",
        row="nccl", scope=J, says="the order in which modules run differs {how}", why="A branch on data: the ranks gather different units and their collectives no longer fit.", fix="Run the same modules in the same order on all ranks", sources="_exec_order_utils.py",
        sample="RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 1 is all-gathering 2 parameters",
    ),
    _s(
        "LOG714", L, 60, "FSDP's inner state is inconsistent",
        ("_free_low_precision_sharded_param", "_saved_grad_shard", "_mp_shard` to exist"), r"'NoneType' object has no attribute '_free_low_precision_sharded_param|_saved_grad_shard|`_mp_shard` to exist",
        scope=J, why="A forward failed or was skipped, or reentrant checkpointing ran hooks twice.", fix="Use checkpoint(use_reentrant=False), and do not go on after a failed forward", sources="_flat_param.py",
        sample="AssertionError: Expects `_mp_shard` to exist",
    ),
    _s(
        "LOG715", L, 50, "Options of accelerate contradict each other",
        ("sync_module_states", "cpu_ram_efficient_loading"), r"`?(?:sync_module_states|cpu_ram_efficient_loading)`?.*(?:must|requires|needs)",
        scope=J, why="cpu_ram_efficient_loading loads on rank 0 only and needs sync_module_states to broadcast.", fix="Set both to true", sources="accelerate",
        sample="ValueError: `sync_module_states` must be `True` if `cpu_ram_efficient_loading` is `True`",
    ),
    _s(
        "LOG716", R, 86, "A module or package is missing",
        ("ModuleNotFoundError", "ImportError", "cannot open shared object file"), r"^(?:ModuleNotFoundError|ImportError): (?P<what>.*)|error while loading shared libraries: (?P<what2>\S+)",
        scope=J, says="an import failed: {what}", why="The environment of the failing ranks lacks a package or a library, or has another version.", fix="Install it into the environment that the launcher uses on every node", command="fsdp-doctor check --python EXE", sources="CPython",
        sample="ModuleNotFoundError: No module named 'flash_attn'",
    ),
    _s(
        "LOG717", R, 84, "A file that the program needs is missing",
        "No such file or directory", r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>(?![^']*(?:\.metadata|\.distcp)')[^']*)'|can't open file '(?P<path2>[^']+)'",
        row=None, says="{path} does not exist on this rank's machine", why="The path is wrong or local to another node.", fix="Check that the path exists on every node", command="ls -l PATH", sources="errno 2",
        sample="FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-017.bin'",
    ),
    _s(
        "LOG718", R, 70, "Tensors are on different devices",
        "to be on the same device", r"Expected all tensors to be on the same device",
        scope=J, why="A batch or a buffer was not moved to the rank's GPU, or a parameter was left behind by wrapping.", fix="Move batches to torch.device(\"cuda\", local_rank), and register buffers before wrapping", sources="ATen",
        sample="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
    _s(
        "LOG719", R, 72, "An argument or option is wrong",
        ("error: unrecognized arguments", "error: the following arguments are required", "error: argument ", "unexpected keyword argument"),
        r"error: (?P<what>(?:unrecognized arguments|the following arguments are required|argument \S+).*)|(?P<what2>\S+\(?\)? got an unexpected keyword argument .*)",
        scope=J, says="a wrong argument: {what}", why="The program or launcher does not know the option; every rank ends at once.", fix="Look at --help of the version that is installed", sources="argparse, CPython",
        sample="train.py: error: unrecognized arguments: --fsdp-foo",
    ),
    _s(
        "LOG731", L, 55, "A loss or gradient norm is not a number",
        ("nan", "NaN", "inf"), r"(?i:\b(?:loss|grad_?norm|gnorm|perplexity|ppl)\b)[\"'*]?\W{1,6}(?P<v>[-+]?(?:nan|NaN|NAN|[iI]nf(?:inity)?))\b",
        gate=r"(?i)(?:loss|grad_?norm|gnorm|perplexity|ppl)[\"'*]?\W{1,6}[-+]?(?:nan|inf)", row="wrong", says="the loss or gradient norm became {v}",
        why="The learning rate, float16 overflow, a bad batch, or a damaged GPU; where one rank alone has it first, it is that rank's data or hardware.",
        fix="Find the first step and rank that has it; use bfloat16, clip gradients, lower the learning rate, skip the batch", sources="common training loops",
        sample="step 812 loss: nan grad_norm: inf",
    ),
    _s(
        "LOG732", C, 10, "The loss scale was reduced",
        ("Gradient overflow", "OVERFLOW! Rank"), r"Gradient overflow\. +Skipping step|OVERFLOW! Rank (?P<r>\d+) Skipping step",
        row="wrong", why="Normal while the scale is searched; bad only when it never ends.", fix="Use bfloat16", sources="apex, DeepSpeed",
        sample="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536",
    ),
    _s(
        "LOG733", R, 75, "A collective was given NaN",
        ("checkForNan", "checkForNaN", "NaN found", "NaN detected", "NaNs found", "NaNs detected"), r"NaNs? (?:found|detected).*(?:rank|collective)|checkForNa[nN]",
        row="wrong", why="TORCH_NCCL_NAN_CHECK found NaN in an input.", fix="Look at what this rank computed before the collective", sources="ProcessGroupNCCL, TORCH_NCCL_NAN_CHECK",
        sample="CUDA kernel checkForNaN: NaN detected in collective input",
    ),
    _s(
        "LOG734", R, 74, "The program itself stopped on NaN",
        ("on-finite", "oss is nan", "oss is NaN", "NaN or Inf", "nan loss", "NaN loss", "an in loss"), r"(?:[Ll]oss is (?:nan|NaN|inf|infinite)|[Nn]on-finite (?:loss|grad\w*|norm)|(?:nan|NaN) (?:in )?loss|NaN or Inf (?:found|detected)|total norm .* is non-finite)",
        row="wrong", says="the program stopped because loss or gradients are not finite", why="The learning rate, float16 overflow, a bad batch, or a damaged GPU.", fix="Find the first step and rank that has it; use bfloat16, clip gradients, lower the learning rate, skip the batch", sources="common training loops, torch.nn.utils.clip_grad",
        sample="RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
    ),
    _s(
        "LOG735", R, 76, "Parameters were not used, and DDP waited for them",
        "Expected to have finished reduction in the prior iteration", r"Expected to have finished reduction in the prior iteration",
        scope=J, row="nccl", why="Some parameters got no gradient in a step.", fix="Pass find_unused_parameters=True, or use all parameters in each step", sources="DDP reducer.cpp",
        sample="RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
)
