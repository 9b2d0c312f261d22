from __future__ import annotations

import pytest

from fsdp_doctor.tables.cuda_errors import number_of
from fsdp_doctor.tables.import_errors import PATTERNS, Cause


@pytest.mark.parametrize(
    ("text", "cause", "detail"),
    [
        ("libtorch_cuda.so: undefined symbol: ncclCommResume", Cause.NCCL_SYMBOL, "ncclCommResume"),
        (
            "undefined symbol: __nvJitLinkComplete_12_4, version",
            Cause.CUDA_SYMBOL,
            "__nvJitLinkComplete_12_4",
        ),
        ("undefined symbol: iJIT_NotifyEvent", Cause.SYMBOL, "iJIT_NotifyEvent"),
        ("undefined symbol: _ZN3c104cuda9SetDeviceEa", Cause.SYMBOL, "_ZN3c104cuda9SetDeviceEa"),
        ("OSError: libcudart.so.13: cannot open shared object file", Cause.LIBRARY, "libcudart.so.13"),
        ("libcuda.so.1: cannot open shared object file", Cause.DRIVER_LIBRARY, "libcuda.so.1"),
        ("/lib64/libm.so.6: version `GLIBC_2.29' not found", Cause.GLIBC, "GLIBC_2.29"),
        ("version `GLIBCXX_3.4.30' not found", Cause.LIBSTDCXX, "GLIBCXX_3.4.30"),
        ("libgomp.so.1: cannot allocate memory in static TLS block", Cause.SYMBOL, "libgomp.so.1"),
        ("No module named 'typing_extensions'", Cause.MODULE, "typing_extensions"),
        ("import torch did not end within 60 s", Cause.HANG, "did not end"),
        ("ended by signal SIGSEGV", Cause.CRASH, "SIGSEGV"),
    ],
)
def test_first_match(text: str, cause: Cause, detail: str) -> None:
    pattern, found = next((p, m) for p in PATTERNS if (m := p.text.search(text)))
    assert (pattern.cause, found.group(1)) == (cause, detail)
    assert pattern.meaning.format(detail)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", 802),
        ("The NVIDIA driver on your system is too old (found version 12020).", 35),
        ("Error 804: forward compatibility was attempted on non supported HW", 804),
        ("No CUDA GPUs are available", 100),
        ("CUDA unknown error - this may be due to", 999),
        ("something else", None),
        (None, None),
    ],
)
def test_number_of(text: str | None, number: int | None) -> None:
    assert number_of(text) == number
