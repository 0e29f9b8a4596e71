"""Secrets of command lines and of what the job prints: values that are known by the name before them, or by their own
form, wherever they occur.

A name is secret by what it contains (TOKEN, PASSWORD, API_KEY), but for the terms of language models: an
`eos_token` is none. Lines of the job are read by the million.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from diag.launch.launchers.tables import read_tables

HIDDEN = "***"

# https://user:PASSWORD@host, https://TOKEN@host, and parameters such as ?token=, ?X-Amz-Signature= and ?sig=
# (Azure's).
_OF_URLS = re.compile(
    r"(://[^/@\s:'\"]{0,200}:)(?!\d+/)[^@\s'\"]{1,500}(?:@[^@/\s'\"]{1,200}){0,4}(?=@)"
    r"|(://)(?!git@)[^/@\s:'\"]{1,500}(?=@)"
    r"|([?&#][^=&#\s]{0,64}?(?:token|secret|sig|key|passw|credential)[^=&#\s]{0,64}=)[^&#\s'\"]+",
    re.IGNORECASE,
)
# Addresses that are a secret as they are: whoever has one can write there. Slack, Discord, Feishu and Lark,
# Teams, Telegram; those of DingTalk and WeCom have it in a parameter.
_WEBHOOKS = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/"
    r"|(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/|webhook\.office\.com/webhookb2/|api\.telegram\.org/bot)[\w/+:@.-]+"
)
# The same as one word, as the library apprise has it.
_OF_SERVICES = re.compile(
    r"\b((?:slack|discord|feishu|lark|dingtalk|wecombot|tgram|ntfys?|mailtos?)://)[^\s'\"]+", re.IGNORECASE
)
# After "Authorization:" whatever it is; after a mere "Bearer" what is no word.
_HEADERS = re.compile(
    r"(\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:(?:bearer|basic|token|digest|negotiate)\s+)?)[^\s\"',;]+"
    r"|(\bbearer\s+)(?=[^\s\"',;]*\d)[\w.~+/-]{8,}=*"
    r"|(\b(?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?)[\w.-]+=[^\"'\n]+",
    re.IGNORECASE,
)
_PEM_HINT = "PRIVATE KEY"
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(.{1,20000}?)(?=-----END )", re.DOTALL
)
_PEM_LINE = re.compile(r"[^\n]+")


# At import: what masks secrets later may have other rights by then, no descriptor left, or a disk that hangs.
_TABLES = read_tables("names.toml")


def table(name: str) -> dict[str, Any]:
    """Of names.toml."""
    table: dict[str, Any] = _TABLES[name]
    return table


@cache
def _names(kind: str) -> frozenset[str]:
    return frozenset(table("names")[kind])


@cache
def _by_form() -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(table('forms').values())})")


def without_forms(text: str) -> str:
    """The same with what is secret by its form as ***; as many lines as before.

    >>> without_forms("pull from https://me:pw@host/a failed, Authorization: Bearer abc")
    'pull from https://me:***@host/a failed, Authorization: Bearer ***'
    """
    if _PEM_HINT in text:
        text = _PEM.sub(lambda found: found[1] + _PEM_LINE.sub(HIDDEN, found[2]), text)
    if "://" in text:
        text = _OF_SERVICES.sub(r"\1***", text)
        text = _OF_URLS.sub(r"\1\2\3***", text)
    if "/" in text:
        text = _WEBHOOKS.sub(r"\1***", text)
    if any(hint in text for hint in table("hints")["headers"]):
        text = _HEADERS.sub(r"\1\2\3***", text)
    return _by_form().sub(HIDDEN, text)


# argparse takes any beginning of an option that is no other's: --hub_tok, --wandb_api_k.
_CUT = re.compile(r"_(?:TOK|TOKE|SECR|SECRE|CRED\w*|API_K|API_KE|ACCESS_K|ACCESS_KE|PASS)$")
_NAME = r"[\w.\-]{1,200}"  # of an option, a variable, a setting such as Hydra's a.b=c, a key of JSON
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"';&|]+)"""
# NAME=value within a word (`bash -c "export HF_TOKEN=..."`), --name value there, "name": "value" and Name:
# Bearer value.
_PLACES = (
    (re.compile(rf"(?<![\w.\-])({_NAME})="), re.compile(_VALUE)),
    (re.compile(rf"(?<![\w.\-])(--?{_NAME})\s+(?!-)"), re.compile(_VALUE)),
    (
        re.compile(rf"(?<![\w.\-])({_NAME})[\"']?\s{{0,9}}:\s{{0,9}}"),
        re.compile(rf"(?:(?:bearer|basic|token)\s+)?{_VALUE}", re.IGNORECASE),
    ),
)
_MORE_COMMANDS = frozenset({";", "|", "||", "&&", "&", "--"})
_OPTION = re.compile(r"--[A-Za-z][\w.\-]*(?:=.*)?|-[A-Za-z]", re.DOTALL)
# A name whose value is a secret in any text. In a log `key`, `tokens` and `pad_token` are
# words of the trade.
_IN_TEXT = re.compile(
    r"SECRET|PASSW|PASSPHRASE|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY|PRIVATE_?KEY|(?:API|ACCESS|AUTH|HUB|HF)_?TOKEN"
    r"|(?:^|_)PWD$|_TOKEN$|_PASS$|CONNECTION_STRING$|(?:^|_)WEBHOOK(?:_URL)?$"
)
_NO_SECRET = re.compile(
    r"[\[({<*]|(?:None|none|null|nil|True|true|False|false|\d[\d.,]*|\*+)[,)\]}]*$|.{0,3}$", re.DOTALL
)
_NAMED = (
    (
        re.compile(rf"(?<![\w.\-])({_NAME})="),
        re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s"';&|,)\]}]+)"""),
    ),
    (
        re.compile(rf"(?<=[\"'])({_NAME})[\"']\s{{0,3}}:\s{{0,3}}"),
        re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""),
    ),
)


def is_secret(name: str) -> bool:
    """Whether what an option, a variable or a key of this name says must not be kept.

    >>> [is_secret(name) for name in ("--hub_token", "WANDB_API_KEY", "hub.token", "--max_tokens", "--num-key-value-heads")]
    [True, True, True, False, False]
    """
    words = _words(name)
    joined = "_".join(words)
    if name in _names("directories") or name.startswith("NCCL_PAT_"):  # an algorithm of NCCL, no access token
        return False
    if (
        any(part in joined for part in _names("always"))
        or _names("words").intersection(words)
        or _CUT.search(joined)
    ):
        return True
    if any(word.endswith("PASS") and word not in _names("no_passwords") for word in words):
        return True
    if any(word.endswith("TOKEN") or word == "TOKENS" for word in words):
        return not _names("beside_token").intersection(words)
    # {"key": ...} is anything
    key = ("KEY" in words or "KEYS" in words) and (len(words) > 1 or name.startswith("-"))
    return key and not _names("beside_key").intersection(words)


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
    tools = _Tools()
    for word in words:
        name, equals, _ = word.partition("=")
        shown = tools.shown(word)
        if hide and not _OPTION.fullmatch(word):
            kept.append(HIDDEN)
        elif shown is not None:
            kept.append(shown)
        elif equals and re.fullmatch(rf"[+~]*{_NAME}", name) and is_secret(name):
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(without_secrets(word))
        option = word.startswith("-") and not any(map(str.isspace, word))
        hide = option and not equals and is_secret(word)
    return kept


class _Tools:
    """Follows the words of a command line, and knows where a program that is named in it has its password."""

    def __init__(self) -> None:
        self._tool = ""
        self._login = False
        self._next = False

    def shown(self, word: str) -> str | None:
        """The word without the password that it is or has; None where this is nothing to hide."""
        plain = word.strip("\"'`$();&|")
        tool, hide = self._tool, self._next
        self._next = False
        if hide:
            return HIDDEN
        if word in _MORE_COMMANDS or word.endswith(";"):
            self._tool, self._login = "", False
        name = plain.rpartition("/")[2]
        if name in table("tools") or name in _names("logins"):
            self._tool, self._login = name, False
            return None
        if plain == "login":
            self._login = True
            return None
        if tool in _names("logins") and self._login and not word.startswith("-"):
            self._login = False
            return HIDDEN
        if tool == "sshpass" and not word.startswith("-"):  # the command that it runs begins
            self._tool = tool = ""
        options = table("tools").get(tool, {"apart": (), "joined": ()})
        if tool in _names("logged_in_at") and not self._login:
            return None
        self._next = word in options["apart"]
        for option in options["joined"]:
            if word.startswith(option) and len(word) > len(option) and not word.startswith("--"):
                return f"{option}{HIDDEN}"
        return None


def without_secrets(text: str) -> str:
    """One word of a command line, which may be a whole command, or the value of a variable."""
    text = without_forms(text)
    if any(map(str.isspace, text)):
        tools = _Tools()
        text = "".join(
            part if at % 2 else _in_place(tools, part) for at, part in enumerate(re.split(r"(\s+)", text))
        )
    if "=" in text or ":" in text or any(map(str.isspace, text)):
        for name, value in _PLACES:
            text = _hidden(text, name, value, is_secret)
    return text


def _in_place(tools: _Tools, word: str) -> str:
    shown = tools.shown(word) if word else None
    return word if shown is None else shown


# --- what the job prints


def hidden_in_lines(text: str) -> str:
    """Lines of a log without secrets that are known by their form or by a name that has no other meaning; as
    many lines as before. Most lines have none: then it looks for some words, and that is all.

    >>> hidden_in_lines("tokens/s 5120, api_key=abcd1234, pad_token='</s>', at /data/hf_model")
    "tokens/s 5120, api_key=***, pad_token='</s>', at /data/hf_model"
    """
    may_tell = _look_for_hints()
    if may_tell(text) is None:
        return text
    if "PRIVATE KEY" in text:
        text = without_forms(text)
    return "\n".join(line if may_tell(line) is None else _hidden_in_line(line) for line in text.split("\n"))


@cache
def _look_for_hints() -> Callable[[str], object]:
    """RE2 looks for all of them at once: 0.3 us a line of a chunk, where `in` for each takes 5, and `re` 8."""
    import re2

    hints = (*table("forms"), *table("hints")["headers"], *table("hints")["names"])
    pattern = re2.compile("|".join(map(re.escape, hints)).encode())
    return lambda text: pattern.search(text.encode("utf-8", "replace"))


def _hidden_in_line(line: str) -> str:
    line = without_forms(line)
    for name, value in _NAMED:
        line = _hidden(line, name, value, _is_secret_in_text, _NO_SECRET)
    return line


def _is_secret_in_text(name: str) -> bool:
    words = _words(name)
    return (
        bool(_IN_TEXT.search("_".join(words)))
        and not _names("beside_token").intersection(words)
        and name not in _names("directories")
    )


def _words(name: str) -> list[str]:
    upper = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return [word for word in re.split(r"[^A-Z0-9]+", upper) if word]


def _hidden(
    text: str,
    names: re.Pattern[str],
    values: re.Pattern[str],
    is_secret: Callable[[str], bool],
    plain: re.Pattern[str] | None = None,
) -> str:
    """`plain`: values that are none, whatever their name."""
    kept: list[str] = []
    done = 0
    for match in names.finditer(text):
        if match.start() < done or not is_secret(match[1]):
            continue
        value = values.match(text, match.end())
        if value is not None and not (plain and plain.match(value[0].strip("\"'"))):
            quote = value[0][0] if value[0][0] in "\"'" and len(value[0]) > 1 else ""
            kept.append(f"{text[done : match.end()]}{quote}{HIDDEN}{quote}")
            done = value.end()
    return "".join((*kept, text[done:]))
