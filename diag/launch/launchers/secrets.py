"""Secrets of command lines and of what the job prints: values that are known by the name before them, or by their own
form, wherever they occur.

A name is secret by what it contains (TOKEN, PASSWORD, API_KEY), but for the terms of language models: an
`eos_token` is none. Lines of the job are read by the million.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

HIDDEN = "***"

# What each token of an issuer contains, and the token. Letters enough that no ordinary name is one.
_FORMS = (
    ("hf_", r"hf_[A-Za-z0-9]{20,}"),  # Hugging Face
    *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),  # GitHub
    ("github_pat_", r"github_pat_\w{20,}"),
    *(
        (f"{kind}-", rf"{kind}-[\w-]{{16,}}") for kind in ("glpat", "gldt", "glptt", "glrt", "glcbt")
    ),  # GitLab
    (
        "sk-",
        r"sk-(?:(?:proj|ant|or|svcacct|admin|lf)-[\w-]{16,}|[A-Za-z0-9]{20,})",
    ),  # OpenAI, Anthropic, DeepSeek, DashScope
    ("xox", r"xox[abeoprs]-[\w-]{10,}"),  # Slack
    ("xapp-", r"xapp-\d-[\w-]{10,}"),
    *((kind, rf"{kind}[A-Z0-9]{{16}}(?![A-Za-z0-9])") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),  # AWS
    ("LTAI", r"LTAI[A-Za-z0-9]{12,26}(?![A-Za-z0-9])"),  # Alibaba Cloud
    ("AKID", r"AKID[A-Za-z0-9]{32}(?![A-Za-z0-9])"),  # Tencent Cloud
    ("eyJ", r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"),  # a JWT
    ("nvapi-", r"nvapi-[\w-]{20,}"),  # NVIDIA
    ("npm_", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi-", r"pypi-AgE[\w-]{20,}"),
    ("AIza", r"AIza[\w-]{30,}"),  # Google
    ("ya29.", r"ya29\.[\w.-]{20,}"),
    ("r8_", r"r8_[A-Za-z0-9]{30,}"),  # Replicate
    ("gsk_", r"gsk_[A-Za-z0-9]{30,}"),  # Groq
    ("xai-", r"xai-[A-Za-z0-9]{40,}"),
    ("wandb_v", r"wandb_v\d_\w{20,}"),  # Weights & Biases
    ("dapi", r"dapi[a-f0-9]{32}(?![a-f0-9])"),  # Databricks
    ("dckr_", r"dckr_[po]at_[\w-]{20,}"),  # Docker
    ("SG.", r"SG\.[\w-]{16,}\.[\w-]{16,}"),  # SendGrid
    *((f"k_{kind}_", rf"[rs]k_{kind}_[A-Za-z0-9]{{10,}}") for kind in ("live", "test")),  # Stripe
    ("hvs.", r"hvs\.[\w-]{20,}"),  # Vault
    ("dop_v1_", r"dop_v1_[a-f0-9]{60,}"),
    ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
)
_BY_FORM = re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(form for _, form in _FORMS)})")
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
# After "Authorization:" whatever it is; after a mere "Bearer" what is no word.
_HEADERS = re.compile(
    r"(\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:(?:bearer|basic|token|digest|negotiate)\s+)?)[^\s\"',;]+"
    r"|(\bbearer\s+)(?=[^\s\"',;]*\d)[\w.~+/-]{8,}=*"
    r"|(\b(?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?)[\w.-]+=[^\"'\n]+",
    re.IGNORECASE,
)
_HEADER_HINTS = ("earer ", "EARER ", "uthorization", "UTHORIZATION", "ookie:", 'ookie"', "ookie'", "OOKIE:")
_PEM_HINT = "PRIVATE KEY"
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(.{1,20000}?)(?=-----END )", re.DOTALL
)
_PEM_LINE = re.compile(r"[^\n]+")

HINTS = (*(hint for hint, _ in _FORMS), *_HEADER_HINTS, "://", "api.telegram.org", _PEM_HINT)


def without_forms(text: str) -> str:
    """The same with what is secret by its form as ***; as many lines as before.

    >>> without_forms("pull from https://me:pw@host/a failed, Authorization: Bearer abc")
    'pull from https://me:***@host/a failed, Authorization: Bearer ***'
    """
    if _PEM_HINT in text:
        text = _PEM.sub(lambda found: found[1] + _PEM_LINE.sub(HIDDEN, found[2]), text)
    if "://" in text:
        text = _OF_URLS.sub(r"\1\2\3***", text)
    if "/" in text:
        text = _WEBHOOKS.sub(r"\1***", text)
    if any(hint in text for hint in _HEADER_HINTS):
        text = _HEADERS.sub(r"\1\2\3***", text)
    return _BY_FORM.sub(HIDDEN, text)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# anywhere in a name
_ALWAYS = names(
    """
SECRET PASSW PASSPHRASE CREDENTIAL JWT OAUTH BEARER APIKEY API_KEY ACCESS_KEY ACCESSKEY PRIVATE_KEY
PRIVATEKEY API_TOKEN ACCESS_TOKEN AUTH_TOKEN
"""
)
_WORDS = names(
    """
AUTH AUTHORIZATION AUTHENTICATION PWD PW PAT WEBHOOK COOKIE COOKIES DSN CONNSTR PASSIN PASSOUT
"""
)
_IN_A_ROW = ("CONNECTION_STRING", "CONN_STR", "CONN_STRING")
# argparse takes any beginning of an option that is no other's: --hub_tok, --wandb_api_k.
_CUT = re.compile(r"_(?:TOK|TOKE|SECR|SECRE|CRED\w*|API_K|API_KE|ACCESS_K|ACCESS_KE|PASS)$")
_NO_PASSWORDS = frozenset({"BYPASS", "COMPASS"})
_DIRECTORIES = frozenset({"PWD", "OLDPWD", "INIT_CWD"})
# Words beside `token` of names whose value is none: special tokens of tokenizers, numbers of tokens,
# Megatron's --moe-token-dispatcher-type; and beside `key`: columns of data (OpenRLHF's --input_key, verl's
# data.prompt_key), attention's.
_BESIDE_TOKEN = names(
    """
BOS EOS EOT EOD PAD UNK MASK CLS SEP IMAGE VIDEO AUDIO VISION SPECIAL START STOP END BEGIN DECODER ENCODER
ADDED EXTRA FORCED MAX MIN NUM TOTAL TRAIN BATCH BATCHED PER INDEX LEN LENGTH COUNT TYPE DISPATCHER DROP
BUDGET PROMPT
"""
)
_BESIDE_KEY = names(
    """
VALUE VALUES HEAD HEADS SORT PROMPT INPUT OUTPUT LABEL TEXT QUERY RESPONSE CHOSEN REJECTED REWARD ANSWER
DATASET GROUP MESSAGE MESSAGES COLUMN CONTENT SYSTEM METRIC PADDING NORM PROJ CACHE
"""
)

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
# Programs whose password is an option of a letter, which others use for other things: after it, or with it in
# one word.
_TOOLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sshpass": (("-p",), ("-p",)),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb", "mariadb-dump"), ((), ("-p",))),
    "curl": (("-u", "--user", "-U", "--proxy-user", "-b", "--cookie"), ("-u", "-U", "-b")),
    "redis-cli": (("-a", "--pass"), ()),
    "ldapsearch": (("-w",), ("-w",)),
    "smbclient": (("-U",), ("-U",)),
    "skopeo": (("--creds", "--src-creds", "--dest-creds"), ()),
    **dict.fromkeys(("docker", "podman", "nerdctl", "helm", "az"), (("-p",), ())),
}
_MORE_COMMANDS = frozenset({";", "|", "||", "&&", "&", "--"})
_LOGINS = frozenset({"wandb", "swanlab", "comet"})  # `wandb login KEY`
# elsewhere -p is a port: docker run -p 80:80
_LOGGED_IN_AT = frozenset({"docker", "podman", "nerdctl", "helm", "az"})
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
_LINE_HINTS = (
    *HINTS, "assw", "ASSW", "ecret", "ECRET", "pi_key", "piKey", "PI_KEY", "pikey", "ccess_key", "ccessKey", "CCESS_KEY",
    "ccountKey", "_token=", "_token'", '_token"', "_TOKEN", "Token=", "wd=", "WD=", "ebhook", "EBHOOK", "_PASS", 
    "onnectionString", "onnection_string", "rivate_key",
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Whether what an option, a variable or a key of this name says must not be kept.

    >>> [is_secret(name) for name in ("--hub_token", "WANDB_API_KEY", "hub.token", "--max_tokens", "--num-key-value-heads")]
    [True, True, True, False, False]
    """
    words = _words(name)
    joined = "_".join(words)
    if name in _DIRECTORIES or name.startswith("NCCL_PAT_"):  # an algorithm of NCCL, no access token
        return False
    if (
        any(part in joined for part in (*_ALWAYS, *_IN_A_ROW))
        or _WORDS.intersection(words)
        or _CUT.search(joined)
    ):
        return True
    if any(word.endswith("PASS") and word not in _NO_PASSWORDS for word in words):
        return True
    if any(word.endswith("TOKEN") or word == "TOKENS" for word in words):
        return not _BESIDE_TOKEN.intersection(words)
    # {"key": ...} is anything
    key = ("KEY" in words or "KEYS" in words) and (len(words) > 1 or name.startswith("-"))
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
        if name in _TOOLS or name in _LOGINS:
            self._tool, self._login = name, False
            return None
        if plain == "login":
            self._login = True
            return None
        if tool in _LOGINS and self._login and not word.startswith("-"):
            self._login = False
            return HIDDEN
        if tool == "sshpass" and not word.startswith("-"):  # the command that it runs begins
            self._tool = tool = ""
        apart, joined = _TOOLS.get(tool, ((), ()))
        if tool in _LOGGED_IN_AT and not self._login:
            return None
        self._next = word in apart
        for option in joined:
            if word.startswith(option) and len(word) > len(option) and not word.startswith("--"):
                return option + HIDDEN
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
# ---------------------------------------------------------------------------------------


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

    pattern = re2.compile("|".join(map(re.escape, _LINE_HINTS)).encode())
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
        and not _BESIDE_TOKEN.intersection(words)
        and name not in _DIRECTORIES
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
