"""Which sharding is faster over a fabric: over all ranks, or within nodes with replicas between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fsdp_doctor.probe.step_model import BAND, Step, StepInputs, Transfers, predict


@dataclass(frozen=True, slots=True)
class Choice:
    """FULL_SHARD over all ranks against HYBRID_SHARD within nodes."""

    full: Step
    hybrid: Step | None
    """None where the model's state does not fit into one node's GPUs."""
    strategy: str
    reason: str


def choose(
    inputs: StepInputs,
    full: Transfers,
    hybrid: Transfers,
    nodes: int,
    state_bytes: float,
    memory_bytes: float,
) -> Choice:
    """Which sharding is faster. `inputs` describe the full one; `state_bytes` are parameters, gradients and
    optimizer of the model, `memory_bytes` what one GPU has for them.
    """
    whole = predict(inputs, full)
    per_node = max(inputs.shard_size // max(nodes, 1), 1)
    if nodes < 2:
        return Choice(whole, None, "FULL_SHARD", "one node")
    if state_bytes / per_node > memory_bytes:
        need, room = state_bytes / per_node / 2**30, memory_bytes / 2**30
        return Choice(
            whole,
            None,
            "FULL_SHARD",
            f"a node's shard of {need:.0f} GiB per GPU does not fit into {room:.0f} GiB",
        )
    inside = predict(replace(inputs, shard_size=per_node, replicas=nodes), hybrid)
    gain = inside.tokens_per_second / whole.tokens_per_second - 1
    if gain > BAND:
        return Choice(whole, inside, "HYBRID_SHARD", f"{gain:+.0%}: the gathers stay inside the node")
    return Choice(
        whole, inside, "FULL_SHARD", f"HYBRID_SHARD would give {gain:+.0%}, within the model's error"
    )
