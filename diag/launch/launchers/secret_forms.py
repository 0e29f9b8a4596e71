"""Secrets that are known by their own form, wherever they occur: tokens with a known beginning, passwords and
keys in addresses, headers, private keys. In command lines, and in lines that the job prints, which are read
by the million.

The beginnings are facts of those who issue them, as gitleaks' rules (v8) and the issuers' own pages have
them.
"""

from __future__ import annotations

import re

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
