"""Secrets of command lines: which names have a secret as their value, and a command line without those values.

A name is secret by what stands in it (TOKEN, PASSWORD, API_KEY), but for the words of language models: an `eos_token` is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_secret", "redacted"]

_ALWAYS = ("SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "JWT", "OAUTH", "BEARER", "APIKEY", "API_KEY", "ACCESS_KEY",
           "ACCESSKEY", "PRIVATE_KEY", "PRIVATEKEY", "API_TOKEN", "ACCESS_TOKEN", "AUTH_TOKEN")  # anywhere in a name
_WORDS = frozenset({"AUTH", "AUTHORIZATION", "AUTHENTICATION"})
_NO_PASSWORDS = frozenset({"BYPASS", "COMPASS"})
# Words beside `token` of names whose value is none: special tokens of tokenizers, numbers of tokens, Megatron's
# --moe-token-dispatcher-type; and beside `key`: columns of data (OpenRLHF's --input_key, verl's data.prompt_key), attention's.
# fmt: off
_BESIDE_TOKEN = frozenset({
    "BOS", "EOS", "EOT", "EOD", "PAD", "UNK", "MASK", "CLS", "SEP", "IMAGE", "VIDEO", "AUDIO", "VISION", "SPECIAL", "START",
    "STOP", "END", "BEGIN", "DECODER", "ENCODER", "ADDED", "EXTRA", "FORCED", "MAX", "MIN", "NUM", "TOTAL", "TRAIN", "BATCH",
    "BATCHED", "PER", "INDEX", "LEN", "LENGTH", "COUNT", "TYPE", "DISPATCHER", "DROP", "BUDGET", "PROMPT",
})
_BESIDE_KEY = frozenset({
    "VALUE", "VALUES", "HEAD", "HEADS", "SORT", "PROMPT", "INPUT", "OUTPUT", "LABEL", "TEXT", "QUERY", "RESPONSE", "CHOSEN",
    "REJECTED", "REWARD", "ANSWER", "DATASET", "GROUP", "MESSAGE", "MESSAGES", "COLUMN", "CONTENT", "SYSTEM", "METRIC",
    "PADDING", "NORM", "PROJ", "CACHE",
})
# fmt: on

_NAME = r"[\w.\-]{1,200}"  # of an option, a variable, a setting such as Hydra's a.b=c, a key of JSON
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"';&|]+)"""
# NAME=value within a word (`bash -c "export HF_TOKEN=..."`), --name value there, "name": "value" and Name: Bearer value.
_PLACES = (
    (re.compile(rf"(?<![\w.\-])({_NAME})="), re.compile(_VALUE)),
    (re.compile(rf"(?<![\w.\-])(--?{_NAME})\s+(?!-)"), re.compile(_VALUE)),
    (re.compile(rf"(?<![\w.\-])({_NAME})[\"']?\s{{0,9}}:\s{{0,9}}"),
     re.compile(rf"(?:(?:bearer|basic|token)\s+)?{_VALUE}", re.IGNORECASE)),
)
# https://user:PASSWORD@host, https://TOKEN@host, and parameters such as ?token=, ?X-Amz-Signature= and ?sig= (Azure's).
_OF_URLS = re.compile(
    r"(://[^/@\s:'\"]{0,200}:)(?!\d+/)[^@\s'\"]{1,500}(?:@[^@/\s'\"]{1,200}){0,4}(?=@)"
    r"|(://)(?!git@)[^/@\s:'\"]{1,500}(?=@)"
    r"|([?&#][^=&#\s]{0,64}?(?:token|secret|sig|key|passw|credential)[^=&#\s]{0,64}=)[^&#\s'\"]+",
    re.IGNORECASE,
)
# By their own form, wherever they stand: Hugging Face's, GitHub's, GitLab's, OpenAI's, Slack's, AWS's access keys, JWTs.
_BY_FORM = re.compile(
    r"(?<![\w-])(?:hf_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether what an option, a variable or a key of this name says must not be kept.

    >>> [is_secret(name) for name in ("--hub_token", "WANDB_API_KEY", "hub.token", "--max_tokens", "--num-key-value-heads")]
    [True, True, True, False, False]
    """
    upper = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    words = [word for word in re.split(r"[^A-Z0-9]+", upper) if word]
    if any(part in "_".join(words) for part in _ALWAYS) or _WORDS.intersection(words):
        return True
    if any(word.endswith("PASS") and word not in _NO_PASSWORDS for word in words):
        return True
    if any(word.endswith("TOKEN") or word == "TOKENS" for word in words):
        return not _BESIDE_TOKEN.intersection(words)
    key = ("KEY" in words or "KEYS" in words) and (len(words) > 1 or name.startswith("-"))  # {"key": ...} is anything
    return key and not _BESIDE_KEY.intersection(words)


def redacted(words: Sequence[str]) -> list[str]:
    """A command line as it may be kept and sent around: values that look like secrets are hidden.

    >>> redacted(["swift", "sft", "--hub_token", "hf_x", "--wandb_api_key=y", "--max_tokens", "128"])
    ['swift', 'sft', '--hub_token', '***', '--wandb_api_key=***', '--max_tokens', '128']
    >>> redacted(["--dataset", "https://me:pw@host/a.jsonl?X-Amz-Signature=b1&part=2"])
    ['--dataset', 'https://me:***@host/a.jsonl?X-Amz-Signature=***&part=2']
    >>> redacted(["bash", "-c", "export HF_TOKEN=hf_x; torchrun train.py --hub_token hf_x"])
    ['bash', '-c', 'export HF_TOKEN=***; torchrun train.py --hub_token ***']
    """
    kept: list[str] = []
    hide = False
    for word in words:
        option = word.startswith("-") and not any(map(str.isspace, word))
        name, equals, _ = word.partition("=")
        if hide and not option:
            kept.append(_HIDDEN)
        elif equals and re.fullmatch(rf"[+~]*{_NAME}", name) and is_secret(name):
            kept.append(f"{name}={_HIDDEN}")
        else:
            kept.append(_without(word))
        hide = option and not equals and is_secret(word)
    return kept


def _without(text: str) -> str:
    if "://" in text:
        text = _OF_URLS.sub(r"\1\2\3***", text)
    if "=" in text or ":" in text or any(map(str.isspace, text)):
        for name, value in _PLACES:
            text = _hidden(text, name, value)
    return _BY_FORM.sub(_HIDDEN, text)


def _hidden(text: str, names: re.Pattern[str], values: re.Pattern[str]) -> str:
    kept: list[str] = []
    done = 0
    for match in names.finditer(text):
        if match.start() < done or not is_secret(match[1]):
            continue
        value = values.match(text, match.end())
        if value is not None:
            quote = value[0][0] if value[0][0] in "\"'" and len(value[0]) > 1 else ""
            kept.append(f"{text[done : match.end()]}{quote}{_HIDDEN}{quote}")
            done = value.end()
    return "".join((*kept, text[done:]))
