"""Providers of `Driver` and `Gpus`: NVML's answers joined with what /proc and /sys say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.facts.gpu_device import gpu
from fsdp_doctor.facts.nvml_answers import Answers, error_of
from fsdp_doctor.facts.source import Json, Source, number, text
from fsdp_doctor.facts.visible import visible_indices
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus

NVIDIA = 0x10DE
PCI_DEVICES = "/sys/bus/pci/devices"
PROC_DRIVER = "/proc/driver/nvidia"
VERSION = re.compile(r"(?<![\d.])(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)(?![\d.])")
LIBCUDA = re.compile(r"libcuda\.so\.(\d{3,4}\.\d+(?:\.\d+)?)\Z")
MODULES = re.compile(r"nvidia|nouveau\Z|nv_peer_mem\Z|gdrdrv\Z|ib_|mlx\d|rdma_|efa\Z|irdma\Z|bnxt_re\Z")
NO_LIBRARY = "LibraryNotFound"

START_ERRORS = {
    NO_LIBRARY: (
        "the NVML library (libnvidia-ml.so.1) was not found: no NVIDIA driver here",
        "install the NVIDIA driver, or start the container with the NVIDIA runtime (--gpus all)",
    ),
    "DriverNotLoaded": (
        "the NVIDIA kernel driver is not loaded (NVML: DriverNotLoaded)",
        "modprobe nvidia, and see dmesg if that fails",
    ),
    "LibRmVersionMismatch": (
        "the NVML library and the loaded kernel driver have different versions (NVML: LibRmVersionMismatch)",
        "reload the NVIDIA modules or reboot",
    ),
    "NoAnswer": (
        "NVML did not answer in time: a GPU or the driver hangs",
        "see dmesg for Xid and NVRM lines",
    ),
    "Crashed": ("the NVML library crashed at its start", "run nvidia-smi and see dmesg"),
    "NoPermission": ("NVML refused this user (NoPermission)", "give this user access to /dev/nvidia*"),
}
"""NVML's error at its start -> (reason, what would make the GPUs readable)."""


def driver(source: Source) -> Known[Driver] | Unknown:
    """The driver by the kernel, NVML and the file system; unknown where nothing names NVIDIA."""
    answers = source.nvml()
    error = _start_error(answers)
    system = Answers(_mapping(_known(answers), "system"))
    kernel, is_open = _kernel_version(source)
    bound = _bound_drivers(source)
    proc_gpus = _proc_gpus(source)
    started = not isinstance(answers, Unknown) and error is None
    signs = bool(kernel or bound or proc_gpus or started or source.exists(PROC_DRIVER))
    if not signs and error in (None, NO_LIBRARY):
        if isinstance(answers, Unknown):
            return answers
        return Unknown("no NVIDIA GPU and no NVIDIA driver here", absent=True)
    compute = system.struct("nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeSettings") or {}
    compute_answers = Answers(compute)
    value = Driver(
        kernel_version=kernel,
        open_module=is_open,
        nvml_version=system.text("nvmlSystemGetDriverVersion"),
        library_version=_library_version(source),
        cuda_version=system.integer("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"),
        nvml_error=error,
        modules=_modules(source),
        bound=bound,
        proc_gpus=proc_gpus,
        conf_compute=compute_answers.flag("ccFeature"),
        conf_compute_devtools=compute_answers.flag("devToolsMode"),
    )
    where = [f"{PROC_DRIVER}/version" if kernel else "", "NVML" if started else ""]
    return Known(value, ", ".join(w for w in where if w) or PCI_DEVICES)


def gpus(source: Source) -> Known[Gpus] | Unknown:
    """All GPUs of NVML with their answers; unknown with the reason where NVML shows none."""
    answers = source.nvml()
    if isinstance(answers, Unknown):
        return answers
    in_pci = tuple(nvidia_gpus(source))
    error = _start_error(answers)
    if error is not None:
        known = START_ERRORS.get(error)
        reason, enable = known or (f"NVML did not start: {error}", "run nvidia-smi and see dmesg")
        detail = answers.value.get("reason")
        reason += f" ({detail})" if isinstance(detail, str) and detail else ""
        if in_pci and error == NO_LIBRARY:
            reason = f"{reason} although PCI lists {_count(in_pci)}"
        absent = not in_pci and error in (NO_LIBRARY, "DriverNotLoaded")
        return Unknown(reason, "" if absent else enable, absent=absent)
    listed = answers.value.get("devices")
    devices = listed if isinstance(listed, Sequence) and not isinstance(listed, str) else ()
    system = Answers(_mapping(answers.value, "system"))
    if not devices:
        failed = system.error("nvmlDeviceGetCount")
        reason = "NVML counts no GPU" if failed is None else f"NVML cannot count the GPUs: {failed}"
        if in_pci:
            reason = f"{reason} although PCI lists {_count(in_pci)}"
        return Unknown(reason, "see dmesg for NVRM lines" if in_pci else "", absent=not in_pci)
    found = tuple(gpu(source, i, d) for i, d in enumerate(devices))
    count = system.integer("nvmlDeviceGetCount")
    return Known(Gpus(found, count, _visible(source, found, devices)), "NVML")


def nvidia_gpus(source: Source) -> Iterable[str]:
    """PCI addresses of NVIDIA display and 3D controllers."""
    for bdf in source.listdir(PCI_DEVICES):
        if number(source, f"{PCI_DEVICES}/{bdf}/vendor") == NVIDIA:
            pci_class = number(source, f"{PCI_DEVICES}/{bdf}/class")
            if pci_class is not None and pci_class >> 16 == 0x03:
                yield bdf


def _count(addresses: Sequence[str]) -> str:
    return f"{len(addresses)} NVIDIA GPU{'s' if len(addresses) > 1 else ''}"


def _known(answers: Known[Mapping[str, Json]] | Unknown) -> Mapping[str, Json]:
    return {} if isinstance(answers, Unknown) else answers.value


def _mapping(value: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    part = value.get(key)
    return part if isinstance(part, Mapping) else {}


def _start_error(answers: Known[Mapping[str, Json]] | Unknown) -> str | None:
    value = _known(answers)
    return error_of(value) if "devices" not in value else None


def _kernel_version(source: Source) -> tuple[str | None, bool | None]:
    """The loaded module's version, and whether it is the open flavour."""
    banner = text(source, f"{PROC_DRIVER}/version", 4096) or ""
    line = next((x for x in banner.splitlines() if x.startswith("NVRM version")), "")
    match = VERSION.search(line)
    version = match.group(1) if match else text(source, "/sys/module/nvidia/version", 64)
    return version or None, ("Open Kernel Module" in line) if line else None


def _library_version(source: Source) -> str | None:
    """The version in the name of the libcuda that torch mapped, else of the one the loader would take."""
    stack = _known(source.stack())
    mapped = stack.get("libraries")
    paths = [p for p in mapped if isinstance(p, str)] if isinstance(mapped, Sequence) else []
    found = _mapping(stack, "dlopen").get("libcuda.so.1")
    if isinstance(found, str) and found.startswith("/"):
        paths += [found, source.realpath(found)]
    return next((m.group(1) for p in paths if (m := LIBCUDA.search(p))), None)


def _modules(source: Source) -> tuple[str, ...]:
    listed = (text(source, "/proc/modules") or "").splitlines()
    names = {line.split()[0] for line in listed if line.split()}
    return tuple(sorted(n for n in names.union(source.listdir("/sys/module")) if MODULES.match(n)))


def _bound_drivers(source: Source) -> dict[str, str]:
    found = {}
    for bdf in nvidia_gpus(source):
        link = source.readlink(f"{source.realpath(f'{PCI_DEVICES}/{bdf}')}/driver")
        found[bdf] = link.rstrip("/").rsplit("/", 1)[-1] if link else ""
    return {bdf: name for bdf, name in found.items() if name}


def _proc_gpus(source: Source) -> dict[str, str]:
    found = {}
    for bdf in source.listdir(f"{PROC_DRIVER}/gpus"):
        information = text(source, f"{PROC_DRIVER}/gpus/{bdf}/information", 4096) or ""
        models = [x.split(":", 1)[1].strip() for x in information.splitlines() if x.startswith("Model:")]
        found[bdf.lower()] = models[0] if models else ""
    return found


def _visible(source: Source, found: tuple[Gpu, ...], devices: Sequence[Json]) -> tuple[int, ...] | None:
    env = source.env()
    value = None if isinstance(env, Unknown) else env.value.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else visible_indices(value, found, devices)
