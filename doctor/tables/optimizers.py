"""What optimizers ask a checkpoint for: state per parameter and options per group, by name."""

from __future__ import annotations

from collections.abc import Mapping

CHECKED_ON = "2026-12-02"
SOURCES = ("torch 2.13: torch/optim/adam.py, sgd.py, rmsprop.py, adagrad.py, adamax.py, nadam.py, radam.py",)

STATES: Mapping[str, tuple[str, ...]] = {
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "amsgrad": ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "sgd": (),
    "sgdm": ("momentum_buffer",),
    "rmsprop": ("step", "square_avg"),
    "adagrad": ("step", "sum"),
    "adamax": ("step", "exp_avg", "exp_inf"),
    "nadam": ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    "radam": ("step", "exp_avg", "exp_avg_sq"),
    "lion": ("exp_avg",),
}
"""State per parameter, by the name that `--optimizer` takes, in the order in which it is made."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "adam": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "adamw": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "amsgrad": ("lr", "betas", "eps", "weight_decay", "amsgrad"),
    "sgd": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "sgdm": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "rmsprop": ("lr", "momentum", "alpha", "eps", "centered", "weight_decay"),
    "adagrad": ("lr", "lr_decay", "eps", "weight_decay"),
    "adamax": ("lr", "betas", "eps", "weight_decay"),
    "nadam": ("lr", "betas", "eps", "weight_decay", "momentum_decay"),
    "radam": ("lr", "betas", "eps", "weight_decay"),
    "lion": ("lr", "betas", "weight_decay"),
}
"""Hyperparameters of a group that every release has."""
