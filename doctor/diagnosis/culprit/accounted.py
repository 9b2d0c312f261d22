"""What the scheduler's accounting says of the job: how it ended, by its most telling record.

A job's own record says FAILED or CANCELLED where that of a step says why, and the steps of a job that ran
into its time limit are CANCELLED: records are taken in the order of what they tell, those of steps first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import HOST_OOM, SCHEDULER, SCHEDULER_OOM
from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.diagnosis.culprit.signals import CRASHES, SIGKILL
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.diagnosis.culprit.words_outside import NODE_DOWN, TIME_UP
from fsdp_doctor.subjects.accounting import Account
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_signatures import SIGNATURES

TELLING = (
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "TIMEOUT",
    "DEADLINE",
    "FAILED",
    "CANCELLED",
)
OUTSIDE, BY_TIME, AT_LEAST = 90, 60, 45
"""Scores: of what came from outside; of a time limit, which a hang may have used up; of a mere exit code."""


def candidates(view: View) -> list[Candidate]:
    """What the accounting says of the last job that did not end well."""
    failed = [a for a in view.incident.accounts if a.state in TELLING]
    if not failed:
        return []
    last = failed[-1].job
    told = min(
        (a for a in failed if a.job == last),
        key=lambda a: (TELLING.index(a.state), a.step in ("", "batch", "extern"), len(a.nodes) or 1 << 16),
    )
    score, conclusion = _BY_STATE.get(told.state, _scheduler)(view, told)
    return [Candidate(score, conclusion, 0, frozenset(conclusion.culprits))] if conclusion is not None else []


Judged = tuple[float, Conclusion | None]


def _of(account: Account) -> str:
    """Such as `step 4421.0 on gn12`."""
    step = f"step {account.job}.{account.step}" if account.step else f"job {account.job}"
    where = f" on {account.nodes[0]}" if len(account.nodes) == 1 else ""
    return step + where


def _host(account: Account) -> str | None:
    return account.nodes[0] if len(account.nodes) == 1 else None


def _ranks_of(view: View, account: Account) -> tuple[int, ...]:
    """Ranks on the one node of a record, where the job has others."""
    hosts, name = view.incident.job.hosts, _host(account)
    own = tuple(sorted(r for r, h in hosts.items() if name is not None and h.partition(".")[0] == name))
    return own if 0 < len(own) < len(hosts) else ()


def _proofs(view: View, account: Account) -> tuple[Proof, ...]:
    same = (a for a in view.incident.accounts if a.job == account.job and a.state != "COMPLETED")
    return unique_proofs(Proof(a.file, a.line, None, None, a.text) for a in (account, *same))


def _by_signature(
    view: View, account: Account, code: str, title: str, why: str = "", fix: Remedy | None = None
) -> Conclusion:
    signature = SIGNATURES[code]
    return Conclusion(
        code=code,
        title=title,
        row=signature.row.value if signature.row is not None else None,
        confidence="high",
        why=why or signature.why,
        host=_host(account),
        victims=tuple(sorted(view.suffering)),
        evidence=_proofs(view, account),
        fixes=(fix or Remedy(signature.fix, signature.command),),
        explained=(code,),
    )


def _memory(view: View, account: Account) -> Judged:
    if any(h.code in HOST_OOM and not view.is_accounted(h) for h in view.hits):
        return 0, None  # the kernel or the step itself says more
    used = f" ({account.memory})" if account.memory else ""
    title = f"Host out of memory: Slurm ended {_of(account)} for the memory it used{used}"
    conclusion = _by_signature(view, account, SCHEDULER_OOM, title)
    return OUTSIDE, _with_ranks(conclusion, tuple(sorted(view.killed)))


def _node(view: View, account: Account) -> Judged:
    if any(h.code == SCHEDULER and "NODE" in h.text for h in view.hits):
        return 0, None
    ranks = tuple(sorted(view.without_a_word)) or _ranks_of(view, account)
    title = f"A node of the job went down, and Slurm ended {_of(account)} ({account.state})"
    conclusion = _by_signature(view, account, SCHEDULER, title, *NODE_DOWN)
    return OUTSIDE, _with_ranks(conclusion, ranks)


def _time(view: View, account: Account) -> Judged:
    title = f"The scheduler ended {_of(account)}: TIME LIMIT ({account.state})"
    return BY_TIME, _by_signature(view, account, SCHEDULER, title, *TIME_UP)


def _scheduler(view: View, account: Account) -> Judged:
    title = f"The scheduler ended {_of(account)}: {account.state}"
    return OUTSIDE, _by_signature(view, account, SCHEDULER, title)


def _cancelled(view: View, account: Account) -> Judged:
    if view.failed_exits or view.consequences:
        return 0, None  # somebody stopped what had failed or hung
    by = f" by the user with the id {account.user}" if account.user is not None else ""
    why = "scancel, or the administrator's or the scheduler's own decision: nothing in the program."
    fix = Remedy(
        "Ask the accounting who cancelled it", f"sacct -j {account.job} -o JobID,State%30,ExitCode,Comment"
    )
    title = f"{_of(account).capitalize()} was cancelled{by}"
    return AT_LEAST, _by_signature(view, account, SCHEDULER, title, why, fix)


def _failed(view: View, account: Account) -> Judged:
    """An exit code, or a signal: nothing where the logs tell themselves of an exit, or of what led to it."""
    if view.failed_exits or (view.consequences and account.signal != SIGKILL):
        return 0, None
    who, ranks = _of(account).capitalize(), _ranks_of(view, account)
    if account.signal == SIGKILL:
        code, title = codes.KILLED, f"{who} was killed (SIGKILL): most likely out of host memory"
    elif account.signal in CRASHES:
        code, title = codes.CRASHED, f"{who} crashed natively ({CRASHES[account.signal]})"
    elif account.code == 1:
        code, title = (
            codes.ERROR_HIDDEN,
            f"{who} failed with an error that is not in these logs (exit code 1)",
        )
    else:
        how = f"signal {account.signal}" if account.signal else f"exit code {account.code}"
        code, title = codes.EXITED, f"{who} ended with {how}"
    conclusion = derived(
        code,
        title,
        "medium",
        host=_host(account),
        victims=tuple(sorted(view.suffering)),
        evidence=_proofs(view, account),
    )
    return AT_LEAST, _with_ranks(conclusion, ranks)


def _with_ranks(conclusion: Conclusion, ranks: tuple[int, ...]) -> Conclusion:
    if not ranks:
        return conclusion
    title = f"{rank_words(ranks).capitalize()}: {conclusion.title[0].lower()}{conclusion.title[1:]}"
    victims = tuple(r for r in conclusion.victims if r not in ranks)
    return replace(conclusion, culprits=ranks, title=title, victims=victims)


_BY_STATE: Mapping[str, Callable[[View, Account], Judged]] = {
    "OUT_OF_MEMORY": _memory,
    "NODE_FAIL": _node,
    "TIMEOUT": _time,
    "DEADLINE": _time,
    "CANCELLED": _cancelled,
    "FAILED": _failed,
}
