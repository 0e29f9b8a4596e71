"""Command lines that are kept: no secret in them, and the words that tell what ran still there."""

from __future__ import annotations

import time

import pytest

from diag.launch.launchers.secrets import redacted

SECRET = "s3cret"


@pytest.mark.parametrize("words", [
    ["bash", "-c", "export HF_TOKEN=s3cret; WANDB_API_KEY='s3cret s3cret' python t.py --hub_token s3cret --lr 5"],
    ["sh", "-c", 'A_SECRET="s3cret \\" s3cret" x'],
    ["bash", "-c", "x --password='s3cret s3cret' --lr 1"],
    ["ssh", "node", "HF_TOKEN=s3cret torchrun --hub_token=s3cret x.py"],
    ["env", "HF_TOKEN=s3cret", "AWS_ACCESS_KEY_ID=s3cret", "SSHPASS=s3cret", "MY_PASS=s3cret", "HTTP_AUTH=s3cret"],
    ["docker", "run", "--env=HF_TOKEN=s3cret", "-e", "WANDB_API_KEY=s3cret"],
    ["HF_TOKEN=s3cret s3cret", "--password=s3cret;s3cret", "--token", "s3cret s3cret"],
    ["+trainer.wandb_key=s3cret", "hub.token=s3cret", "++a.b.apiKey=s3cret"],
    ["--headers", '{"Authorization": "Bearer s3cret", "api_key":"s3cret", "a": {"accessToken" : "s3cret"}}'],
    ["--extra={'token': 's3cret'}", "--user-token=s3cret", "--data-token", "s3cret", "USER_KEY=s3cret"],
    ["--header", "Authorization: Bearer s3cret", "-H", "X-Api-Key: s3cret"],
    ["--dataset", "https://s3cret@github.com/x", "--d=https://u:s3@s3cret@h/x", "--d=https://u:s3/s3cret@h/x"],
    ["https://h/x#access_token=s3cret", "redis://:s3cret@h"],
    ["huggingface-cli", "login", "hf_abcdefghijklmnopqrstuvs3cret"],
])  # fmt: skip
def test_no_secret_is_kept(words: list[str]) -> None:
    assert not [word for word in redacted(words) if SECRET in word]


@pytest.mark.parametrize("line", [
    "vllm --max_tokens 2048 --max_num_batched_tokens=8192 --tokenizer x --tokenizer_name_or_path=y",
    "pretrain.py --key_value_heads 8 --num-key-value-heads=8 --moe-token-dispatcher-type alltoall --train-tokens 5",
    "--eos_token </s> --pad_token_id 0 --special_tokens <a> MAX_TOKENS=5 --tokens-per-step=4",
    "--sort_key len data.prompt_key=prompt --input_key q --author me --author-email a@b.c --num_passes 3 --turkey 1",
    "python -c from_multiprocessing;spawn_main(tracker_fd=1) --rdzv_endpoint h:29500 http://h:8080/a/b@c s3://b/a@b/x:c",
    "git clone ssh://git@github.com/x",
])  # fmt: skip
def test_words_that_are_no_secret_are_kept(line: str) -> None:
    assert redacted(line.split()) == line.split()


@pytest.mark.parametrize(
    "word",
    [":" + "//:" * 40_000, "://a:b" * 20_000, "a=" * 60_000, 'token:"' * 20_000, "?a" * 60_000 + "://"],
    ids=["colons", "users", "assigned", "quotes", "parameters"],
)
def test_long_odd_words_are_read_at_once(word: str) -> None:
    began = time.process_time()
    redacted([word])
    assert time.process_time() - began < 10  # a pattern that goes back and forth takes minutes
