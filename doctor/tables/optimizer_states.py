"""What optimizers keep per parameter, and what their groups and training scripts call things."""

from __future__ import annotations

from collections.abc import Mapping

CHECKED_ON = "2026-12-01"
SOURCES = (
    "torch/optim/*.py (_init_group of each optimizer) of torch 2.13",
    "transformers/optimization.py (Adafactor), torchao/optim, bitsandbytes/optim",
)

KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("adam_amsgrad", frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})),
    ("adafactor", frozenset({"exp_avg_sq_row"})),
    ("adafactor", frozenset({"row_var"})),
    ("adam", frozenset({"exp_avg", "exp_avg_sq"})),
    ("adam_8bit", frozenset({"state1", "state2"})),
    ("adamax", frozenset({"exp_avg", "exp_inf"})),
    ("nadam", frozenset({"mu_product"})),
    ("lion", frozenset({"exp_avg"})),
    ("adadelta", frozenset({"square_avg", "acc_delta"})),
    ("rmsprop", frozenset({"square_avg"})),
    ("adagrad", frozenset({"sum"})),
    ("rprop", frozenset({"prev", "step_size"})),
    ("asgd", frozenset({"eta", "mu", "ax"})),
    ("muon_or_sgd_momentum", frozenset({"momentum_buffer"})),
)
"""Kind -> state that tells it; the first match wins."""

STATES = frozenset(
    {
        "step",
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "exp_avg_sq_row",
        "exp_avg_sq_col",
        "row_var",
        "col_var",
        "variance",
        "RMS",
        "exp_inf",
        "mu_product",
        "square_avg",
        "acc_delta",
        "grad_avg",
        "sum",
        "prev",
        "step_size",
        "eta",
        "mu",
        "ax",
        "state1",
        "state2",
        "master_param",
        "fp32_param",
        "param",
    }
)

OPTIONS = frozenset(
    {
        "lr",
        "initial_lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "maximize",
        "foreach",
        "capturable",
        "differentiable",
        "fused",
        "decoupled_weight_decay",
        "momentum",
        "dampening",
        "nesterov",
        "params",
        "param_names",
        "alpha",
        "centered",
        "lr_decay",
        "rho",
        "lambd",
        "t0",
        "etas",
        "step_sizes",
        "name",
        "step",
        "ns_steps",
        "adjust_lr_fn",
        "scale_parameter",
        "relative_step",
        "warmup_init",
        "clip_threshold",
        "decay_rate",
        "beta1",
        "bias_correction",
    }
)
"""Names of a group's hyperparameters."""

PREFIXES: Mapping[str, str] = {
    "module.": "DistributedDataParallel or DataParallel",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP1",
    "_checkpoint_wrapped_module.": "activation checkpointing",
    "_forward_module.": "Lightning Fabric or DeepSpeed",
    "base_model.model.": "PEFT",
    "model.": "a module that holds the model, such as a LightningModule",
}
"""What wrappers put before names -> whose it is."""

MODEL_ROOTS = (
    "model",
    "state_dict",
    "model_state_dict",
    "module",
    "model_state",
    "net",
    "network",
    "app",
)
"""Keys of the saved dictionary that hold the model, the likeliest first."""
