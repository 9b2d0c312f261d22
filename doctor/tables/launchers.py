"""Command-line grammars of the launchers: which options take a value.

Sources: torch 2.13 `torch.distributed.run.get_args_parser` (and the options that 2.0–2.12 had besides),
accelerate 1.x `commands/launch.py`, srun(1) of Slurm 24, mpirun(1) of Open MPI 4 and 5, DeepSpeed 0.17
`launcher/runner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CHECKED_ON = "2026-12-02"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Options of one command by their long name without dashes, `-` written as `_`."""

    name: str
    values: frozenset[str]
    """Take a value, in the next word or after `=`."""
    flags: frozenset[str]
    """Take none."""
    attached: frozenset[str] = frozenset()
    """Take a value only after `=` (or, as a short option, glued to it)."""
    short: dict[str, str] = field(default_factory=dict)
    """Short option letter -> long name."""
    abbreviations: bool = True
    """A unique prefix of a long option is accepted, as argparse and getopt_long do."""
    single_dash: bool = False
    """Long options may be written with one dash, as mpirun does."""
    open_ended: bool = False
    """Options that are not listed are possible (a family such as --megatron_lm_*) and take a value."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TORCHRUN = Grammar(
    "torchrun",
    values=_names(
        "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval "
        "start_method event_log_handler role log_dir redirects tee local_ranks_filter "
        "duplicate_stdout_filters duplicate_stderr_filters node_rank master_addr master_port local_addr "
        "logs_specs numa_binding signals_to_handle shutdown_timeout"
    ),
    flags=_names("help standalone module no_python run_path virtual_local_rank use_env"),
    short={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
)

ACCELERATE = Grammar(
    "accelerate launch",
    values=_names(
        "config_file mixed_precision num_processes num_machines num_cpu_threads_per_process dynamo_backend "
        "dynamo_mode gpu_ids machine_rank main_process_ip main_process_port tee log_dir role rdzv_backend "
        "rdzv_conf max_restarts monitor_interval no_tpu_cluster vm env main_training_function "
        "gradient_accumulation_steps gradient_clipping aws_access_key_id aws_secret_access_key "
        "mpirun_hostfile mpirun_ccl ipex use_xpu"
    ),
    flags=_names(
        "help quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic "
        "dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm "
        "same_network module no_python tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval "
        "debug"
    ),
    short={"m": "module", "t": "tee", "q": "quiet", "h": "help"},
    open_ended=True,
)

SRUN = Grammar(
    "srun",
    values=_names(
        "account acctg_freq array bb bbf bcast begin chdir cluster_constraint clusters comment "
        "constraint container container_env container_image container_mounts container_name "
        "container_save container_workdir core_spec cores_per_socket cpu_bind cpu_freq cpus_per_gpu "
        "cpus_per_task deadline delay_boot dependency distribution epilog error exclude export "
        "extra_node_info gid gpu_bind gpu_freq gpus gpus_per_node gpus_per_socket gpus_per_task gres "
        "gres_flags het_group hint input job_name jobid licenses mail_type mail_user max_exit_timeout "
        "max_launch_time mem mem_bind mem_per_cpu mem_per_gpu mincpus mpi msg_timeout multi_prog_file "
        "network nice nodefile nodelist nodes ntasks ntasks_per_core ntasks_per_gpu ntasks_per_node "
        "ntasks_per_socket ntasks_per_tres open_mode output pack_group partition power prefer "
        "priority profile prolog qos relative reservation signal slurmd_debug sockets_per_node "
        "switches task_epilog task_prolog tasks_per_node threads threads_per_core time time_min tmp "
        "tres_bind tres_per_task uid wait wckey "
    ),
    flags=_names(
        "contiguous disable_status help hold immediate label multi_prog no_allocate no_kill overcommit "
        "overlap oversubscribe preserve_env quiet quit_on_interrupt reboot requeue send_libs spread_job "
        "test_only unbuffered usage use_min_nodes verbose version whole exact interactive "
        "container_mount_home no_container_mount_home container_writable container_readonly "
        "container_remap_root no_container_remap_root container_entrypoint no_container_entrypoint"
    ),
    attached=_names("exclusive kill_on_bad_exit pty propagate resv_ports treewidth compress mail"),
    short={
        "A": "account", "b": "begin", "B": "extra_node_info", "c": "cpus_per_task", "C": "constraint",
        "d": "dependency", "D": "chdir", "e": "error", "E": "preserve_env", "G": "gpus", "H": "hold",
        "h": "help", "i": "input", "I": "immediate", "J": "job_name", "k": "no_kill",
        "K": "kill_on_bad_exit", "l": "label", "L": "licenses", "m": "distribution", "M": "clusters",
        "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "p": "partition",
        "q": "qos", "Q": "quiet", "r": "relative", "s": "oversubscribe", "S": "core_spec", "t": "time",
        "T": "threads", "u": "unbuffered", "v": "verbose", "V": "version", "W": "wait", "w": "nodelist",
        "x": "exclude", "X": "disable_status", "Z": "no_allocate",
    },
)  # fmt: skip

MPIRUN = Grammar(
    "mpirun",
    values=_names(
        "np n c host hostfile machinefile npernode N ppn map_by rank_by bind_to x wdir wd prefix am "
        "output_filename app path timeout env genv hosts f perhost report_uri personality runtime_options"
    ),
    flags=_names(
        "allow_run_as_root oversubscribe nooversubscribe nolocal tag_output timestamp_output bynode byslot "
        "bind_to_core bind_to_none report_bindings display_map display_allocation v verbose q quiet "
        "enable_recovery do_not_launch debug_daemons novm l genvall"
    ),
    short={"H": "host"},
    abbreviations=False,
    single_dash=True,
)

DEEPSPEED = Grammar(
    "deepspeed",
    values=_names(
        "hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus master_port "
        "master_addr node_rank launcher launcher_args autotuning elastic_training venv_script ssh_port "
        "bind_core_list"
    ),
    flags=_names(
        "help module no_python no_local_rank no_ssh_check no_ssh force_multi save_pid enable_each_rank_log "
        "bind_cores_to_rank"
    ),
    short={"H": "hostfile", "i": "include", "e": "exclude", "h": "help"},
)  # fmt: skip

WRAPPERS: dict[str, frozenset[str]] = {
    # command -> its options that take the next word; every other word that starts with a dash is one word
    "nohup": frozenset(),
    "setsid": frozenset(),
    "time": frozenset({"-f", "-o"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "numactl": frozenset({"-N", "-C", "-m", "-i", "-p"}),
    "sudo": frozenset({"-u", "-g", "-C", "-D", "-h", "-p", "-r", "-t", "-U"}),
    "exec": frozenset({"-a"}),
    "catchsegv": frozenset(),
}
WRAPPERS_WITH_OPERAND: dict[str, frozenset[str]] = {
    # the same, but the first plain word belongs to the wrapper (a duration, a mask)
    "timeout": frozenset({"-k", "-s"}),
    "taskset": frozenset(),
}
RUNNERS: dict[tuple[str, ...], frozenset[str]] = {
    # environment managers: `uv run torchrun …`
    ("uv", "run"): frozenset({"--with", "--python", "-p", "--project", "--directory", "--extra", "--group",
                              "--env-file", "--index"}),
    ("poetry", "run"): frozenset(),
    ("pdm", "run"): frozenset({"-p"}),
    ("pixi", "run"): frozenset({"-e", "--environment", "--manifest-path"}),
    ("rye", "run"): frozenset(),
    ("hatch", "run"): frozenset(),
    ("pipenv", "run"): frozenset(),
    ("conda", "run"): frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}),
    ("mamba", "run"): frozenset({"-n", "--name", "-p", "--prefix"}),
    ("micromamba", "run"): frozenset({"-n", "--name", "-p", "--prefix"}),
}  # fmt: skip
