"""What the readers of single launchers fill in, before it is frozen into a `Launch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Draft:
    """The same fields as `Launch`, while they are being read."""

    launcher: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    nproc_per_node: int | None = None
    nproc_spec: str | None = None
    nodes: tuple[int, int] | None = None
    node_rank: int | None = None
    world_size: int | None = None
    standalone: bool = False
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    config_file: str | None = None
    config: dict[str, Scalar] = field(default_factory=dict)
    config_error: str | None = None
    script: str | None = None
    module: str | None = None
    script_arguments: tuple[str, ...] = ()
    python: str | None = None
    problems: list[str] = field(default_factory=list)

    def program(self, rest: tuple[str, ...], *, module: bool, what: str) -> None:
        """Take the script (or module) and its own arguments from what follows the options."""
        if not rest:
            self.problems.append(f"{what} names no training script")
            return
        if module:
            self.module = rest[0]
        elif rest[0] != "-":  # "-" is standard input: there is no file to look at
            self.script = rest[0]
        self.script_arguments = rest[1:]

    def finish_world(self) -> None:
        """Fill the world size where nodes and processes per node are both fixed."""
        if self.world_size is None and self.nproc_per_node is not None and self.nodes is not None:
            low, high = self.nodes
            if low == high:
                self.world_size = high * self.nproc_per_node
