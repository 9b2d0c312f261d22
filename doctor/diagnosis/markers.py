"""Lines that are no symptom and still tell something: the job's size, who is who, stacks, call sites.

They are looked for in the same pass as the signatures of `fsdp_doctor.tables.log_signatures`.
"""

from __future__ import annotations

from fsdp_doctor.tables.log_signatures.model import Kind, Signature

WORLD = "_world"
IDENTITY = "_identity"
PER_NODE = "_per_node"
VERSION = "_version"
CALL_SITE = "_call_site"
FRAME = "_frame"
STACK = "_stack"
MEMORY_STACK = "_faulthandler"
DONE = "_done"
ACCOUNT = "_account"
ACCOUNT_TABLE = "_account_table"
ACCOUNT_JOB = "_account_job"
ACCOUNT_SUMMARY = "_account_summary"
RAS = "_ras"
PROFILED = "_profiled"
PROCESS = "_process"
SMI_GPU = "_smi_gpu"
ACCOUNTS = (ACCOUNT, ACCOUNT_TABLE, ACCOUNT_JOB, ACCOUNT_SUMMARY)
TRACEBACK = "_traceback"
BLOCK = "_block"


def _m(code: str, literals: tuple[str, ...], pattern: str, sample: str, gate: str | None = None) -> Signature:
    return Signature(code, Kind.CONTEXT, 0, None, code, literals, pattern, "", "", "", sample, gate=gate)


def is_marker(signature: Signature) -> bool:
    """Whether a signature is no symptom."""
    return signature.code[0] == "_"


MARKERS: tuple[Signature, ...] = (
    _m(
        WORLD,
        ("orld_size", "orld size", "orld_Size", "orld Size", "WORLD_SIZE", "num_processes", " processes"),
        r"(?:[Ww]orld[_ ][Ss]ize|WORLD_SIZE|num_processes)[\"']?\s*[=:]?\s*[\"']?(?P<n>\d{1,6})\b"
        r"|with (?P<n2>\d{1,6}) (?:distributed )?processes",
        "INFO: world_size=8 starting",
        gate=r"(?:orld[_ ][Ss]ize|ORLD_SIZE|num_processes)[\"']?\s*[=:]?\s*[\"']?\d|with \d{1,6} (?:distributed )?processes",
    ),
    _m(
        IDENTITY,
        ("nranks ", "nRanks "),
        r"rank (?P<rank>\d+) n[rR]anks (?P<n>\d+)(?: cudaDev (?P<dev>\d+))?(?:.*?busId (?P<bus>\w+))?(?:.*?commId (?P<comm>\w+))?",
        "ncclCommInitRank comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 3b000 commId 0x77 - Init START",
    ),
    _m(
        PER_NODE,
        (
            "nproc_per_node",
            "nproc-per-node",
            "nproc-per_node",
            "nproc_per-node",
            "local_world_size",
            "LOCAL_WORLD_SIZE",
            "nnodes",
        ),
        r"(?:nproc[_-]per[_-]node|local_world_size|LOCAL_WORLD_SIZE)[\"']?\s*[=: ]\s*[\"']?(?P<per>\d{1,4})\b|--?nnodes[= ](?P<nodes>\d{1,5})\b",
        "torchrun --nproc_per_node=8 train.py",
    ),
    _m(
        VERSION,
        ("orch==", "orch version", "ytorch==", "yTorch==", "ytorch version", "yTorch version"),
        r"(?:[Pp]y[Tt]orch|torch)(?:==| version[:=]? ?)(?P<torch>\d+\.\d+[\w.+]*)",
        "PyTorch version: 2.6.0+cu124",
        gate=r"(?:orch==|orch version[:=]? ?)\d",
    ),
    _m(
        CALL_SITE,
        (" from ",),
        r"^\s*#(?P<k>\d{1,3}) (?P<fn>[\w.<>]+) from (?P<file>\S+?):(?P<line>\d+)",
        "  #1 validation from /job/train.py:301",
        gate=r"#\d{1,3} [\w.<>]+ from \S",
    ),
    _m(
        FRAME,
        ('File "',),
        r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+), in (?P<fn>\S.*)$',
        '  File "/job/train.py", line 142, in main',
    ),
    _m(
        TRACEBACK,
        ("Traceback (most recent call last)",),
        r"Traceback \(most recent call last\)",
        "Traceback (most recent call last):",
    ),
    _m(
        BLOCK,
        ("Begin global rank ", "End global rank "),
        r"^-{4,}(?P<which>Begin|End) global rank (?P<rank>\d{1,6}) (?P<stream>STDOUT|STDERR)-{4,}",
        "----------Begin global rank 2 STDERR----------",
    ),
    _m(
        STACK,
        ('"MainThread"',),
        r'^\s*Thread (?P<tid>\w+) \((?P<state>[^)]{1,40})\): "MainThread"',
        'Thread 4021 (idle): "MainThread"',
    ),
    _m(
        MEMORY_STACK,
        ("most recent call first",),
        r"^(?P<which>Current thread|Thread) (?P<tid>0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\)",
        "Current thread 0x00007f11 (most recent call first):",
    ),
    _m(
        DONE,
        (
            "raining complete",
            "raining finished",
            "raining done",
            "raining is complete",
            "raining is finished",
            "raining is done",
            "inished training",
            "ll done",
            "xiting normally",
            "inished successfully",
            "ompleted successfully",
            "inished, exiting",
        ),
        r"\b[Tt]raining (?:is )?(?:complete|finished|done)|[Ff]inished training|\b[Aa]ll done\b|[Ee]xiting normally|(?:[Ff]inished|[Cc]ompleted) successfully|[Ff]inished, exiting",
        "Training complete",
    ),
    _m(
        ACCOUNT,
        ("FAIL", "OUT_OF_ME", "TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED", "COMPLETED"),
        r"^(?P<job>\d+(?:[_.]\w+)*)[ |]+.*?\b(?P<state>(?:NODE_|BOOT_)?FAIL(?:ED)?|OUT_OF_ME(?:MORY)?\+?|TIMEOUT"
        r"|DEADLINE|PREEMPTED|CANCELLED(?: by \d+|\+)?|COMPLETED)[ |]+(?P<code>\d+):(?P<sig>\d+)",
        "4421.0|python|FAILED|1:0|node7",
        gate=r"(?:FAIL(?:ED)?|OUT_OF_ME\w*\+?|TIMEOUT|DEADLINE|PREEMPTED|CANCELLED(?: by \d+|\+)?|COMPLETED)"
        r"[ |]+\d+:\d",
    ),
    _m(
        ACCOUNT_TABLE,
        ("JobID",),
        r"^\s*JobID(?:Raw)?\b.*\bState\b|^\s*[A-Z]\w+[ |,;\t].*\bJobID(?:Raw)?\b.*\bState\b"
        r"|^\s*State\b.*\bJobID(?:Raw)?\b",
        "JobID|JobName|State|ExitCode|NodeList",
    ),
    _m(
        ACCOUNT_JOB,
        ("JobState=",),
        r"^\s*JobState=(?P<state>[A-Z_]+)\b",
        "   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)",
    ),
    _m(
        PROCESS,
        (" spawned with command", "pid"),
        r"process (?P<pid>\d+) spawned with command: .*--local_rank=(?P<lr>\d+)"
        r"|\b[Rr]ank[ =:]{1,2}(?P<rank>\d{1,6})\b.{0,40}?\bpid[ =:]{1,2}(?P<pid2>\d+)",
        "process 13266 spawned with command: ['python3', '-u', 'main.py', '--local_rank=0']",
        gate=r" spawned with command: |[Rr]ank[ =:]{1,2}\d{1,6}.{0,41}pid[ =:]{1,2}\d",
    ),
    _m(
        SMI_GPU,
        ("GPU 0000",),
        r"^(?:NVRM: The NVIDIA )?GPU (?P<bus>0000(?:[0-9A-Fa-f]{4})?:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$",
        "GPU 00000000:7B:00.0",
    ),
    _m(
        PROFILED,
        ("ncclDevKernel_", "ncclKernel_"),
        r"^\s*(?P<kernel>nccl(?:Dev)?Kernel_\w+).*?\d(?:us|ms|s)\b",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)  0.00%  0.000us  0.00%  0.000us  0.000us  812.5ms",
    ),
    _m(
        RAS,
        ("Communicators... (",),
        r"^Communicators\.\.\. \(",
        "Communicators... (0.00s)",
    ),
    _m(
        ACCOUNT_SUMMARY,
        ("(exit code ",),
        r"^State: (?P<state>[A-Z_]+) \(exit code (?P<code>\d+)\)",
        "State: OUT_OF_MEMORY (exit code 0)",
    ),
)
