"""Secrets go, whatever they are called or wherever they stand; what checks judge stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_doctor.facts.redact import (
    LOOKS_MARKS,
    NAME_MARKS,
    REDACTED,
    Redactor,
    _may_name,
    is_secret_name,
)

PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\nZXktdjE=\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "MLFLOW_TRACKING_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "DB_PASS",
        "SLURM_JWT",
        "GITHUB_PAT",
        "AZURE_STORAGE_KEY",
        "SENTRY_DSN",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SESSION_COOKIE",
        "HTTP_AUTH",
        "SSH_PRIVATE_KEY",
        "AUTHTOKEN",
        "NVIDIA_API_KEY",
        "password",
        "apikey",
        "client-secret",
        "KUBERNETES_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
        "DOCKER_AUTH_CONFIG",
        "SLACK_WEBHOOK_URL",
        "COMET_APIKEY",
        "SecretAccessKey",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert Redactor().env({name: "s3cr3t-value"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PWD",
        "OLDPWD",
        "HOME",
        "NCCL_IB_PKEY",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "CUDA_VISIBLE_DEVICES",
        "TORCH_NCCL_BLOCKING_WAIT",
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_NODELIST",
        "RANK",
        "GIT_AUTHOR_NAME",
        "XAUTHORITY",
        "KUBERNETES_SERVICE_HOST",
        "PYTORCH_CUDA_ALLOC_CONF",
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "KEYBOARD",
        "MONKEY",
        "PASSTHROUGH",
        "COMPASS",
        "UCX_IB_PKEY",
        "FI_PROVIDER",
        "HOSTNAME",
        "SSH_CLIENT",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)
    assert Redactor().env({name: "some value-1"}) == {name: "some value-1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-1/agent.1"),
        ("USE_AUTH", "true"),
        ("HF_TOKEN", ""),
    ],
)
def test_switches_and_paths_under_such_names_stay(name: str, value: str) -> None:
    assert Redactor().env({name: value}) == {name: value}


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
        "sk-proj-abcDEF123456_7890-abc",
        "sk-ant-api03-abcDEF123456",
        "xoxb-123456789012-abcdefABCDEF",
        "glpat-abcdefGHIJKL12345678",
        "nvapi-abcdefGHIJKL12345678_-x",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
        PEM,
    ],
)
def test_looks(secret: str) -> None:
    line = f"before {secret} after"
    assert Redactor().text(line) == f"before {REDACTED} after"
    assert secret not in Redactor().env({"NCCL_DEBUG_FILE": f"x:{secret}"})["NCCL_DEBUG_FILE"]
    assert Redactor().words(["run", "--x", secret]) == ["run", "--x", REDACTED]
    assert Redactor().json({"a": [secret]}) == {"a": [REDACTED]}


@pytest.mark.parametrize(
    ("line", "clean"),
    [
        ("root=/dev/sda1 ro token=abc quiet", f"root=/dev/sda1 ro token={REDACTED} quiet"),
        ("curl --token abc123 http://h/", f"curl --token {REDACTED} http://h/"),
        ("db.password = 'a b c'", f"db.password = {REDACTED}"),
        ('{"password": "a, b", "user": "u"}', f'{{"password": "{REDACTED}", "user": "u"}}'),
        ("password: hunter22", f"password: {REDACTED}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {REDACTED}"),
        ("Cookie: sid=31d4d96e407; b=1f2e3d", f"Cookie: {REDACTED}"),
        ("https://me:pw@host/x", f"https://{REDACTED}@host/x"),
        ("postgres://me:p@ss@db:5432/x", f"postgres://{REDACTED}@db:5432/x"),
        ("http://u:p@a.b and http://c:d@e.f", f"http://{REDACTED}@a.b and http://{REDACTED}@e.f"),
        ("//me:pw@server/share", f"//{REDACTED}@server/share"),
        ("https://h/x?sig=a%2Fb&x=1", f"https://h/x?sig={REDACTED}&x=1"),
        ("https://h/x?X-Amz-Signature=ab12&y=2", f"https://h/x?X-Amz-Signature={REDACTED}&y=2"),
    ],
)
def test_text(line: str, clean: str) -> None:
    assert Redactor().text(line) == clean


@pytest.mark.parametrize(
    "line",
    [
        "BOOT_IMAGE=/boot/vmlinuz-5.15.0-140 root=UUID=3f6e1f0e-8b0c-4a51-9f6e ro iommu=pt pci=realloc=off",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'",
        "google-auth==2.40.0",
        "torchrun --nproc-per-node 8 --rdzv-endpoint 10.0.0.1:29500 train.py --max-tokens 4096",
        "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
        "36 35 98:0 /a /b rw,noatime master:1 - nfs4 10.30.0.5:/export rw,vers=4.2,sec=sys,clientaddr=10.0.0.1",
        "python -m pytest tests//unit a@b.c git@github.com:x/y user=root",
        'audit: type=1400 audit(1.2:3): apparmor="STATUS" operation="profile_load"',
        "a // b @ c https://host/path@2x.png",
    ],
)
def test_text_that_stays(line: str) -> None:
    assert Redactor().text(line) == line


def test_command_lines() -> None:
    words = [
        "python",
        "t.py",
        "--api-key",
        "a b",
        "--lr",
        "1e-4",
        "--wandb_token=q w",
        "-u",
        "me:pw",
        "KEY=x",
        "",
    ]
    assert Redactor().words(words) == [
        *("python", "t.py", "--api-key", REDACTED, "--lr", "1e-4", f"--wandb_token={REDACTED}"),
        *("-u", f"me:{REDACTED}", f"KEY={REDACTED}", ""),
    ]
    raw = b"srun\0--password\0caf\xe9 1\0-n\0008\0"
    assert Redactor().file("proc/7/cmdline", raw) == b"srun\0--password\0<redacted>\0-n\0008\0"


def test_switch_before_another_switch_takes_no_value() -> None:
    assert Redactor().words(["x", "--use-token", "--nproc", "8"]) == ["x", "--use-token", "--nproc", "8"]


def test_mounts() -> None:
    line = b"9 1 0:9 / /mnt rw - cifs //me:pw@s/x rw,vers=3.0,username=alice,domain=CORP,password=a!b,uid=0\n"
    clean = Redactor().file("proc/self/mountinfo", line)
    assert clean == (
        b"9 1 0:9 / /mnt rw - cifs //<redacted>@s/x rw,vers=3.0,username=<redacted>,domain=<redacted>,"
        b"password=<redacted>,uid=0\n"
    )
    ceph = b"9 1 0:9 / /mnt rw - ceph 10.0.0.1:/ rw,name=admin,secret=AQD1x==,acl\n"
    assert Redactor().file("proc/self/mountinfo", ceph) == ceph.replace(b"AQD1x==", b"<redacted>")


def test_accounts_lose_their_people() -> None:
    raw = b"root:x:0:0:root:/root:/bin/sh\nann:$6$hash:1000:1000:Ann Other,,,:/home/ann:/bin/sh\nodd\n"
    assert Redactor().file("etc/passwd", raw) == (
        b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nodd\n"
    )


def test_binary_files_stay() -> None:
    raw = bytes(range(256)) * 16
    assert Redactor().file("sys/devices/x/config", raw) == raw


def test_known_secret_is_found_where_nothing_names_it() -> None:
    redactor = Redactor()
    secret = '5f4dcc3b5aa765d61d83"27deb'
    redactor.env({"WANDB_API_KEY": secret, "LEVEL_PASSWORD": "short1", "MY_KEY": "h100-node-a-17"})
    assert redactor.again(f"x {secret}\n".encode()) == b"x <redacted>\n"
    assert redactor.again(b'"x 5f4dcc3b5aa765d61d83\\"27deb"') == b'"x <redacted>"'
    for ordinary in (b"short1", b"h100-node-a-17"):
        assert redactor.again(ordinary) == ordinary


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        "a.b+" * 80_000,
        "://a:" * 60_000,
        "a=" * 100_000,
        "-----BEGIN A KEY-----" * 9000,
        "--a " * 80_000,
        "//" * 100_000,
        '"a":"' * 50_000,
        "token:" * 50_000,
        "Cookie: a=b;" * 30_000,
    ],
)
@pytest.mark.timeout(60)
def test_time_grows_with_the_length_only(text: str) -> None:
    assert isinstance(Redactor().text(text), str)


@given(
    st.text()
    | st.lists(st.sampled_from(["--token", "password=", "a", " ", "://", "@", "'", '"', "=", ":", "\0"])).map(
        "".join
    )
)
def test_twice_is_once(text: str) -> None:
    once = Redactor().text(text)
    assert Redactor().text(once) == once


def test_quoted_parts_side_by_side_are_one_value() -> None:
    assert Redactor().text("x PASSWORD='abc'def\"ghi\" y") == "x PASSWORD=<redacted> y"


@pytest.mark.parametrize(
    ("name", "secret"), [("MYPASS", True), ("DB_PASS", True), ("BYPASS", False), ("COMPASS", False)]
)
def test_names_that_end_in_pass(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


PIECES = (
    *(
        "password",
        "token",
        "Tokens/s",
        "--user",
        " -u ",
        "bob:hunter2secret",
        "--proxy-user",
        "=",
        ":",
        " ",
        "\n",
        "'",
    ),
    *(
        '"',
        "hf_" + "a1B" * 8,
        "sk-" + "x1" * 8,
        "eyJabcdefgh.abcd.efg",
        "https://",
        "//",
        "u:pw@host",
        "@",
        "path",
    ),
    *(
        "Authorization: Basic abcdefgh",
        "Cookie: a=b1234",
        "bearer ",
        "API_KEY",
        "api-key",
        "--api-key",
        "--token",
    ),
    *(
        "NCCL_IB_PKEY",
        "step 12 loss 2.5",
        "AKIA" + "A1" * 8,
        "KEY=abc123def456",
        "{",
        "}",
        ",",
        "pat",
        "DSN",
        "-x",
    ),
    *(
        "ghp_" + "Z9" * 10,
        "--password",
        "hunter2hunter2",
        "0",
        "true",
        "/etc/key.pem",
        "--key-file",
        "tokens",
    ),
)


def test_an_ordinary_line_calls_for_no_pattern() -> None:
    line = "[rank3]: INFO trainer: step 3 loss 2.5 grad_norm 0.9 lr 3.0e-04 tokens/s 12000 mem 61.2GiB"
    assert not [m for m in (*LOOKS_MARKS, *NAME_MARKS) if m in line.lower()]
    assert not _may_name(line)
    assert _may_name("token: x") and not _may_name("tokens: 3")


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_no_pattern_is_passed_over_that_would_have_matched(pieces: list[str]) -> None:
    """A text with a letter beyond ASCII gets every pattern; one without gets those that its words call for."""
    text = "".join(pieces)
    every, called = Redactor(), Redactor()
    assert every.text(f"{text}\n;\n\u00e9") == f"{called.text(text)}\n;\n\u00e9"
    assert every._seen == called._seen
