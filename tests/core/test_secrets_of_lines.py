"""Secrets that the job prints are hidden in what diag keeps of its lines; ordinary lines are as they were
printed."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.launch.launchers import relevant
from diag.launch.launchers.secrets import hidden_in_lines, redacted
from diag.sources.logs.output import LineAssembler
from tests.conftest import CAPTURES

S = "s3cretVALUE7"  # in each secret
_PICK = random.Random(7)


def letters(count: int, of: str = string.ascii_letters + string.digits) -> str:
    """A secret of its issuer's letters, with S in it: no real one stands in a file of this repository."""
    return S + "".join(_PICK.choices(of, k=count - len(S)))


TOKENS = [
    f"hf_{letters(34)}", f"ghp_{letters(36)}", f"github_pat_{letters(60)}", f"glpat-{letters(20)}", f"sk-{letters(48)}",
    f"sk-proj-{letters(48)}", f"sk-ant-api03-{letters(48)}", f"xoxb-{letters(40)}", f"nvapi-{letters(64)}", f"npm_{letters(36)}",
    f"AIza{letters(35)}", f"ya29.{letters(40)}", f"r8_{letters(37)}", f"gsk_{letters(52)}", f"wandb_v1_{letters(60)}",
    f"pypi-AgEI{letters(60)}", f"eyJhbGciOiJIUzI1NiJ9.{letters(40)}.{letters(30)}", f"sk_live_{letters(24)}",
    f"hvs.{letters(30)}", f"SG.{letters(22)}.{letters(40)}", f"dckr_pat_{letters(27)}",
]  # fmt: skip
URLS = [
    f"https://me:{S}@host/a", f"postgres://me:{S}@db:5432/x", f"https://{S}x0123456789@github.com/a/b",
    f"https://host/a.jsonl?X-Amz-Signature={S}&part=2", f"https://hooks.slack.com/services/T0AAAAAAA/B0AAAAAAA/{S}",
    f"https://discord.com/api/webhooks/1234567890/{S}", f"https://open.feishu.cn/open-apis/bot/v2/hook/{S}-ab",
    f"https://oapi.dingtalk.com/robot/send?access_token={S}", f"https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={S}",
    f"https://api.telegram.org/bot123456:{S}/sendMessage",
]  # fmt: skip
PRINTED = [
    *(f"[rank3] login with {token}, ok" for token in TOKENS), *(f"POST {url} failed: 503" for url in URLS),
    f"Authorization: Bearer {S}", f"headers={{'Authorization': 'Bearer {S}'}}", f"> authorization: Basic {S}==", f"Bearer {S}",
    f"Cookie: session={S}; csrf=1", f"Namespace(lr=1e-05, hub_token='{S}', api_key={S}, max_tokens=4096)",
    f"HF_TOKEN={S}", f"export WANDB_API_KEY={S}", f'{{"password": "{S}", "lr": 0.1}}', f"Server=db;Uid=me;Pwd={S};Port=1",
    f"AccountKey={S};EndpointSuffix=x", f"  aws_secret_access_key = x, AWS_SECRET_ACCESS_KEY={S}", f"DB_PASSWORD={S}",
    f"SLACK_WEBHOOK_URL={S}", f"hubToken={S}",
]  # fmt: skip


@pytest.mark.parametrize("line", PRINTED)
def test_secret_that_the_job_prints_is_hidden_and_the_line_stays(line: str) -> None:
    hidden = hidden_in_lines(line)

    assert S not in hidden and "***" in hidden
    words = [word for word in line.split() if S not in word and word != "Bearer"]
    # the rest of a cookie goes with it
    assert [word for word in words if word not in hidden] in ([], ["csrf=1"])


def test_private_key_is_hidden_line_by_line() -> None:
    printed = f"a\n-----BEGIN RSA PRIVATE KEY-----\n{S}\n{S}aa==\n-----END RSA PRIVATE KEY-----\nb"

    assert (
        hidden_in_lines(printed)
        == "a\n-----BEGIN RSA PRIVATE KEY-----\n***\n***\n-----END RSA PRIVATE KEY-----\nb"
    )


ORDINARY = """
[rank 3] iteration 120/1000 | tokens/s 5120.3 | total_tokens: 4096000 | lm loss: 2.31E+00 | lr 1.0e-05
pretrain.py --max_tokens 2048 --max_num_batched_tokens=8192 --tokenizer_name_or_path=/data/hf_tokenizer_of_a_long_name
Namespace(eos_token='</s>', pad_token_id=0, hub_token=None, push_to_hub=False, api_key='', token=None, use_auth_token=True)
HEAD is now at 4f2d8a0e9b1c3d5e7f90a1b2c3d4e5f60718293a Fix token dispatcher
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model-00001-of-00004.safetensors
missing_keys=['model.layers.0.weight'], unexpected_keys=['lm_head.weight'], sort_key=length, cache_key=ab12cd34ef56
key: value, key_value_heads: 8, num_key_value_heads=8, state_key=model.embed_tokens.weight
Token indices sequence length is longer than the specified maximum sequence length for this model (9001 > 4096)
File "/root/.cache/hub/models--org--hf_model_name_that_is_long/snapshots/0123456789abcdef0123456789abcdef01234567/a.py"
task-12345678901234567890 mask-abcdefghijklmnopqrstuvwx disk-0123456789abcdefghijklmnop risk-averse
tcp://10.0.0.1:29500 http://node-17:9095/page s3://bucket/run@2026/step:100 file:///data/a@b
[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.
gpu-17:812:955 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.2<0>
PWD=/workspace/train OLDPWD=/root cwd=/tmp/a
Bearer authentication is not configured; bearer tokens are optional; the bearer of this note
secret sharing; password required: no; passwords are not stored; credentials: <botocore.credentials.Credentials object at 0x7f>
UserWarning: `use_auth_token` is deprecated, pass `token=` instead; https://huggingface.co/docs/hub/security-tokens
AKIA is a prefix; LTAI too; eyJ begins a token; nvapi- and hf_ are others; see https://docs.example.org/?page=2&lang=en
""".strip().splitlines()


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_line_is_as_it_was_printed(line: str) -> None:
    assert hidden_in_lines(line) == line


def texts() -> Iterator[Path]:
    yield from (
        path
        for path in sorted((CAPTURES / "logs").rglob("*"))
        if path.is_file() and path.suffix in (".log", ".txt")
    )
    yield from (path for path in sorted((CAPTURES / "nccl").rglob("*.log")))


def test_captured_logs_of_real_jobs_stay_as_they_are() -> None:
    paths = list(texts())
    changed = []
    for path in paths:
        text = path.read_text("utf-8", "backslashreplace")
        pairs = zip(text.split("\n"), hidden_in_lines(text).split("\n"), strict=True)
        changed += [(path.name, *pair) for pair in pairs if pair[0] != pair[1]]

    assert len(paths) > 5 and changed == []


def test_lines_are_as_many_as_before_and_in_any_pieces() -> None:
    text = "\n".join(line for pair in zip(PRINTED, ORDINARY * 3, strict=False) for line in pair) + "\n\n"
    assert hidden_in_lines(text).count("\n") == text.count("\n")

    whole = LineAssembler("stdout").feed(text.encode())
    pieces, assembler = [], LineAssembler("stdout")
    for at in range(0, len(text), 97):
        told = assembler.feed(text.encode()[at : at + 97])
        pieces += told["lines"] if told else []

    assert whole is not None and whole["lines"] == pieces
    assert not [line for line, _ in pieces if S in line]


def test_bar_and_unfinished_last_line_are_looked_at_too() -> None:
    told = LineAssembler("stdout").feed(f"10% https://me:{S}@h\rhf_{letters(34)}".encode(), final=True)

    assert told is not None and len(told["lines"]) == 2 and S not in str(told)


@pytest.mark.parametrize(
    "line",
    [
        "Bearer " * 20_000,
        "://" * 40_000,
        "authorization:" * 10_000,
        "cookie: a=" * 10_000,
        "-----BEGIN PRIVATE KEY-----" * 3_000,
        "eyJaaaaaaaaaaa." * 8_000,
        "api_key=" * 10_000,
        "password='" * 10_000,
        "hooks.slack.com/services/" * 5_000,
        "sk-proj-" * 20_000,
    ],
)
def test_long_odd_line_is_read_at_once(line: str) -> None:
    began = time.process_time()
    hidden_in_lines(line)
    assert time.process_time() - began < 10  # a pattern that goes back and forth takes minutes


# --- command lines and variables
# -------------------------------------------------------------------------------

WORDS = [
    ["x", "--pwd", S], ["x", "--pw", S], ["x", f"--pw={S}"], ["sshpass", "-p", S, "ssh", "h"], ["sshpass", f"-p{S}", "ssh", "h"],
    ["mysql", "-u", "me", f"-p{S}", "db"], ["curl", "-u", f"me:{S}", "https://h"], ["curl", f"-ume:{S}", "h"],
    ["curl", "--proxy-user", f"me:{S}", "h"], ["curl", "-H", f"Cookie: session={S}; b={S}", "h"], ["curl", "-b", f"a={S}", "h"],
    ["wandb", "login", S], ["wandb", "login", "--relogin", S], ["bash", "-c", f"wandb login {S} && python t.py"],
    ["bash", "-c", f"sshpass -p {S} ssh h; curl -u me:{S} h"], ["docker", "login", "-u", "me", "-p", S], ["redis-cli", "-a", S],
    ["x", "--connection", f"Server=db;Uid=me;Pwd={S};"], ["x", "--connection_string", f"Server=db;Password={S}"],
    ["x", "--pat", S], ["x", "--github_pat", S], ["x", "--hf-pat", S], ["x", "--webhook", S], ["x", "--dsn", S],
    ["x", "--key", f"-----BEGIN PRIVATE KEY-----\n{S}\n-----END PRIVATE KEY-----"], ["x", "--hub_tok", S],
    ["x", "--wandb_api_k", S], ["x", "--hub_token", f"-{S}"], ["x", "--password", f"--{S}!"], *(["x", token] for token in TOKENS),
    *(["x", url] for url in URLS),
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_secret_of_a_command_line_is_hidden(words: list[str]) -> None:
    kept = redacted(words)

    assert S not in " ".join(kept) and len(kept) == len(words)
    assert kept[0] == words[0]


@pytest.mark.parametrize("line", [
    "docker run -p 8080:80 image", "python -m torch.distributed.run --nproc_per_node 8 -p 5 train.py", "mysql -u me -p db",
    "tar -b 20 -cf x.tar y", "x --use_auth_token --lr 5", "x --use_auth_token -v", "x --tok /data/t --patience 3 --path /a",
    "wandb sync run-1", "bash -c PWD=/a", "ssh -p 2222 host", "sshpass -e ssh -p 22 host",
])  # fmt: skip
def test_ordinary_words_of_a_command_line_are_kept(line: str) -> None:
    assert redacted(line.split()) == line.split()


def test_variables_of_a_family_that_are_secrets_are_left_out() -> None:
    secret = dict.fromkeys(("NCCL_WEBHOOK", "GLOO_PWD", "NCCL_AUTH", "SLURM_DSN", "UCX_CONNECTION_STRING"), S)
    plain = {
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_PKEY": "0",
        "SLURM_JOB_ID": "7",
        "NCCL_NET_PLUGIN": f"https://me:{S}@h/x",
    }

    kept = relevant({**secret, **plain})

    assert S not in str(kept)
    assert set(kept) == set(plain)


def test_variables_of_nccl_are_none(captures: Path) -> None:
    """All that its documentation has, by their names alone."""
    from diag.knowledge.env_lint import nccl_variables, torch_variables
    from diag.launch.launchers.secrets import is_secret

    names = {*nccl_variables(), *torch_variables()}
    assert len(names) > 20 and [name for name in names if is_secret(name)] == []
