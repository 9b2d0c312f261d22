"""Element types of tensors as torch, its storages and safetensors name them."""

from __future__ import annotations

from collections.abc import Mapping

CHECKED_ON = "2026-12-01"
SOURCES = (
    "torch/_tensor_docs.py, torch/storage.py (_dtype_to_storage_type_map), torch/csrc/api of torch 2.13",
    "https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs (Dtype)",
)

ITEM_BITS: Mapping[str, int] = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "bool": 8,
    "qint8": 8,
    "quint8": 8,
    "qint32": 32,
    "quint4x2": 8,
    "quint2x4": 8,
    "bits8": 8,
    "bits16": 16,
}
"""dtype -> bits of one element as torch addresses it."""

ALIASES: Mapping[str, str] = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}

STORAGES: Mapping[str, str] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
"""Class of a typed storage -> dtype. `UntypedStorage` has none: it counts bytes."""

SAFETENSORS: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}

SCALAR_FORMATS: Mapping[str, str] = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
    "bool": "?",
}
"""dtype -> `struct` code, for reading a single number such as an optimizer's step."""


def item_bytes(dtype: str) -> int | None:
    """Bytes of one element; None for an unknown name."""
    bits = ITEM_BITS.get(ALIASES.get(dtype, dtype))
    return None if bits is None else max(1, bits // 8)
