"""What the classes and functions that a pickle names mean for whoever loads it."""

from __future__ import annotations

import re

CHECKED_ON = "2026-12-01"
SOURCES = (
    "torch/_weights_only_unpickler.py (_get_allowed_globals) of torch 2.13",
    "torch/distributed/tensor/__init__.py (add_safe_globals) of torch 2.13",
    "https://docs.python.org/3/library/pickle.html#restricting-globals",
    "https://github.com/mmaitre314/picklescan (list of dangerous globals)",
)

WEIGHTS_ONLY = frozenset(
    {
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.set",
        "__builtin__.bytearray",
        "__builtin__.complex",
        "__builtin__.set",
        "collections.Counter",
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.nn.Parameter",
        "torch.nn.parameter.Buffer",
        "torch.serialization._get_layout",
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
        "torch._utils._rebuild_device_tensor_from_numpy",
        "torch._utils._rebuild_meta_tensor_no_storage",
        "torch._utils._rebuild_nested_tensor",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_qtensor",
        "torch._utils._rebuild_sparse_tensor",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_wrapper_subclass",
        "torch.storage.TypedStorage",
        "torch.storage.UntypedStorage",
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed._mesh_layout._FlatLayout",
        "torch.distributed._mesh_layout._MeshLayout",
        "torch.distributed.tensor.DTensor",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
        "torch.distributed.tensor._dtensor_spec.TensorMeta",
        "torch.distributed.tensor.placement_types.Partial",
        "torch.distributed.tensor.placement_types.Replicate",
        "torch.distributed.tensor.placement_types.Shard",
        "torch.distributed.tensor.placement_types._StridedShard",
    }
)
"""What torch.load(weights_only=True) of torch 2.13 lets pass, besides the patterns below."""

WEIGHTS_ONLY_PATTERN = re.compile(
    r"torch(\.cuda)?\.(\w+Storage|(sparse\.)?\w+Tensor)"
    r"|torch\.(b?float\d\w*|u?int\d+|bool|complex\d+|q[u]?int\w+|bits\w+|strided|sparse_\w+|per_\w+)"
)
"""Typed storages, old tensor classes, dtypes, layouts and quantization schemes."""

DCP_METADATA = re.compile(
    r"torch\.distributed\.checkpoint\.(metadata|filesystem|planner|_extension|hf_storage|_hf_utils)\.[\w.]+"
    r"|torch\.distributed\._shard\.sharded_tensor\.metadata\.[\w.]+"
    r"|torch\.distributed\._shard\.metadata\.ShardMetadata"
    r"|pathlib\.(Pure)?(Posix|Windows)?Path"
    r"|pathlib\._local\.(Pure)?(Posix|Windows)?Path"
)
"""What a `.metadata` file is made of."""

KNOWN = re.compile(
    r"(torch|numpy|transformers|accelerate|lightning|pytorch_lightning|lightning_fabric|deepspeed|megatron"
    r"|torchtitan|torchdata|torchao|verl|peft|safetensors|omegaconf|argparse|collections|datetime|decimal"
    r"|fractions|enum|copyreg|copy_reg|pathlib|uuid|functools|types|dataclasses|packaging|typing)(\.[\w<>]+)+"
    r"|(builtins|__builtin__)\.(object|slice|range|frozenset|list|dict|tuple|int|float|bool|str|bytes|getattr"
    r"|type|Ellipsis|NotImplemented)"
)

DANGEROUS = re.compile(
    r"(os|posix|nt|subprocess|_posixsubprocess|sys|shutil|socket|_socket|pty|commands|popen2|runpy|code|codeop"
    r"|ctypes|_ctypes|multiprocessing|threading|_thread|asyncio|signal|importlib|_frozen_importlib\w*|imp|pkgutil"
    r"|zipimport|webbrowser|http|urllib|urllib2|requests|httpx|aiohttp|ftplib|smtplib|telnetlib|xmlrpc"
    r"|platform|tempfile|glob|fileinput|io|_io|linecache|mmap|pip|setuptools|distutils|ensurepip|venv"
    r"|pickle|_pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|timeit|cProfile|profile|pdb|bdb|trace"
    r"|doctest|inspect|gc|builtin|operator|_operator|nturl2path|getpass|pydoc|idlelib|lib2to3|test|unittest"
    r"|IPython|sqlite3|logging\.config|site|sysconfig|antigravity|this|turtle|tkinter|bz2|gzip|lzma)(\..+)?"
    r"|(builtins|__builtin__)\.(eval|exec|execfile|compile|open|file|input|__import__|breakpoint|globals|locals"
    r"|vars|setattr|delattr|apply|getattr\..*|map|filter|reduce|memoryview|exit|quit|help|print)"
    r"|types\.(CodeType|FunctionType|LambdaType|MethodType|ModuleType)"
    r"|functools\.(partial|partialmethod|reduce)"
    r"|torch\.(load|hub\..+|jit\..+|package\..+|ops\..+|compile|classes\..+|utils\.cpp_extension\..+"
    r"|serialization\.load|storage\._load_from_bytes|_dynamo\..+|_inductor\..+|fx\..+"
    r"|utils\._config_module\..+|utils\.collect_env\..+|utils\.bottleneck\..+|distributed\.run.*"
    r"|distributed\.elastic\..+|multiprocessing\..+|testing\._internal\..+)"
    r"|numpy\.(load|fromfile|memmap|save|savez|testing\..+|f2py\..+|distutils\..+|genfromtxt|loadtxt)"
    r"|transformers\.(pipeline|.*from_pretrained)"
)
"""It runs code, or reaches files, processes or the network, when a pickle calls it."""

HARMLESS = frozenset(
    {
        "_io.BytesIO",
        "io.BytesIO",
        "operator.itemgetter",
        "operator.attrgetter",
        "_operator.itemgetter",
        "_operator.attrgetter",
        "signal.Signals",
        "logging.Logger",
        "torch.storage._load_from_bytes",
    }
)
"""Members of dangerous modules that honest state often holds; weights_only=True refuses them."""
