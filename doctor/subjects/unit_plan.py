"""How a model is cut into FSDP units: which parameters each gathers and shards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model, under the first of its names."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch names it without `torch.`, such as bfloat16."""
    item_bytes: int
    trainable: bool
    unit: int
    """Index into `UnitPlan.units` of the unit that holds it."""
    other_names: tuple[str, ...] = ()
    """Where the same parameter stands elsewhere in the model (tied weights)."""
    other_units: tuple[int, ...] = ()
    """The units of those places, where they differ from `unit`."""
    device: str = "meta"
    """Where the model's function put it, although it was called under torch.device("meta")."""
    kind: str = "Parameter"
    """Its class; another one than torch's own is a tensor with storage of its own kind."""
    contiguous: bool = True
    ignored: bool = False
    """Kept out of sharding, and so whole on every rank."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class Inner:
    """Modules of one class below a unit that are no units themselves."""

    kind: str
    count: int
    elements: int
    """Of all of them together."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One module that gathers its parameters as a whole; the first is the root."""

    name: str
    """Path in the model; empty for the root."""
    kind: str
    """The module's class."""
    parent: int | None = None
    """Index of the unit around it."""
    container: bool = False
    """Its class has no forward, so that nothing would gather it."""
    inner: tuple[Inner, ...] = ()
    """Its next modules that could be units, the largest first; lists are looked into."""
    deeper: tuple[Inner, ...] = ()
    """The heaviest class of them, the heaviest class inside those, and so on."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A class of block that occurs several times, or as one of a row: a natural unit."""

    kind: str
    count: int
    elements: int
    """Of all of them together."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor that is never sharded."""

    name: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """The plan that `--wrap` makes of a model, and what it is run with."""

    api: str
    strategy: str
    world_size: int
    shard_size: int
    """Ranks over which one shard group extends; 1 without sharding."""
    param_dtype: str | None
    reduce_dtype: str | None
    wrap: tuple[str, ...]
    units: tuple[Unit, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    capacity: int | None = None
    """Bytes of the GPU's memory, where one was named."""
    torch: str = ""
    """Its version, where the child said it."""
    use_orig_params: bool = True
    """FSDP1's argument."""
    missing: tuple[str, ...] = ()
    """Classes of `wrap` that no module of the model has."""
    unknown: tuple[tuple[str, str], ...] = ()
    """Flag and class for classes of other flags that no module of the model has."""
    near: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For such classes: those of the model that are called nearly alike."""
    suggested: tuple[str, ...] = ()
    """Classes whose modules would be good units."""
    left: tuple[Inner, ...] = ()
    """Those of them with parameters that the root holds, and how many elements."""
    checkpointed: tuple[str, ...] = ()
    """Paths of the outermost modules whose activations are computed again."""
    sharded: tuple[str, ...] = ()
    """Paths of modules that the model's function has wrapped itself."""
    optimizers: tuple[str, ...] = ()
    """Attributes of the model that are optimizers over its unsharded parameters."""
    recurrent: tuple[str, ...] = ()
    """Paths of LSTM, GRU and RNN layers that lay their weights into one buffer for cuDNN."""
    optimizer: str = ""
    """As --optimizer names it."""
    clip: bool = False
    order: tuple[int, ...] | None = None
    """Units as they were entered in the first forward, each as often as it was; None where none ran."""
    unordered: str = ""
    """Why none ran, where only the plan was read."""

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(p.elements for p in self.parameters)
