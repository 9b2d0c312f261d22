"""The kernel's own word that nothing outside the rehearsal's folder is written: Landlock, where Linux has it.

It holds for this process and all that it starts, native code included, and needs no rights. Reading stays as
it was. What is refused by it fails with EACCES; the redirections of `files` keep scripts from noticing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, the same on all architectures since Linux 5.13."""
VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVS = 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE = 1 << 1, 1 << 4, 1 << 5, 0b1111111 << 6
REFER, TRUNCATE = 1 << 13, 1 << 14
"""Since versions 2 and 3."""
WRITABLE = ("/dev", "/proc")
"""Devices, shared memory, and what a process may say of itself."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def confine(folder: str) -> str | None:
    """Let this process write below `folder` only. Returns why not, where the kernel cannot."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "this system has no Landlock"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)
    if version < 1:
        return "the kernel has no Landlock"
    rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    rights |= REFER if version >= 2 else 0
    rights |= TRUNCATE if version >= 3 else 0
    ruleset = _Ruleset(rights)
    made = libc.syscall(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if made < 0:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    try:
        for path in (folder, *WRITABLE):
            if not os.path.isdir(path):
                continue
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _Beneath(rights, parent)
                if libc.syscall(ADD_RULE, made, PATH_BENEATH, ctypes.byref(rule), 0):
                    return f"Landlock: {os.strerror(ctypes.get_errno())}"
            finally:
                os.close(parent)
        if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(RESTRICT_SELF, made, 0):
            return f"Landlock: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(made)
    return None
