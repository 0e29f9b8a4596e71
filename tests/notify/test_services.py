"""What each service is sent is what its documentation wants, and what it answers is told: by real processes, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from diag.outputs.notify.addresses import addresses
from diag.outputs.notify.child import ask
from tests.notify.services import Request, Services, free_port, mail_server

FINDING = {
    "id": "hang", "subject": "job", "class": "data_loading", "severity": "critical", "confidence": "high", "ranks": [3],
    "waiting_ranks": [0, 1, 2], "since": 1000.0, "summary": "rank 3 waits for its data loader", "cause": "data_loading",
    "advice": "Look at the workers of rank 3.",
    "evidence": [{"kind": "stack", "excerpt": "a\n<b> & *c* api_key=abcd1234", "at": 1.0, "rank": 3}],
}  # fmt: skip
RUN = {
    "host": "gpu-17",
    "job_id": "4711",
    "run_dir": "/runs/a b",
    "url": "http://127.0.0.1:9095",
    "token": None,
}
EVENT = {
    "event": "finding",
    "changes": [{"change": "opened", "at": 1.0, "opened_at": 1.0, "finding": FINDING}],
    "run": RUN,
}

TELEGRAM = "123456789:abcdefghijklmnopqrstuvwxyzabcdefghi"
SLACK = "T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7"
DISCORD = "417429632418316298/JHZ7lQml277CDHmQKMHI8qBe7bk2ZwO5UKjCiOAF7711o33MyqU344Qpgv7YTpadV"


def sent(*urls: str, lang: str = "en") -> list[dict[str, Any]]:
    pytest.importorskip("apprise")
    return ask({"event": EVENT, "lang": lang}, [(one.url, one.name) for one in addresses(" ".join(urls))])


def test_dingtalk_gets_a_signed_text(standins: Services) -> None:
    (answer,) = sent("https://oapi.dingtalk.com/robot/send?access_token=abc123&secret=SECd")

    (request,) = standins.requests
    assert answer == {"name": "dingtalk", "accepted": True, "text": "accepted (HTTP 200)", "again": False}
    assert (request.host, request.path, request.query["access_token"]) == (
        "oapi.dingtalk.com",
        "/robot/send",
        "abc123",
    )
    signed = f"{request.query['timestamp']}\nSECd".encode()
    assert base64.b64decode(request.query["sign"]) == hmac.digest(b"SECd", signed, hashlib.sha256)
    assert request.json["msgtype"] == "text"
    is_whole(request.json["text"]["content"])


# By service: its address, where it is asked, and where the text is in what it is sent.
CASES: dict[str, tuple[str, str, str, Callable[[Any], str]]] = {
    "slack": (f"slack://{SLACK}", "hooks.slack.com", f"/services/{SLACK}", str),
    "feishu": (
        "feishu://ab-c12",
        "open.feishu.cn",
        "/open-apis/bot/v2/hook/ab-c12/",
        lambda body: body["content"]["text"],
    ),
    "lark": (
        "lark://ab-c12",
        "open.larksuite.com",
        "/open-apis/bot/v2/hook/ab-c12",
        lambda body: body["content"]["text"],
    ),
    "wecom": (
        "wecombot://ab-c12",
        "qyapi.weixin.qq.com",
        "/cgi-bin/webhook/send",
        lambda body: body["text"]["content"],
    ),
    "discord": (f"discord://{DISCORD}", "discord.com", f"/api/webhooks/{DISCORD}", str),
    "telegram": (
        f"tgram://{TELEGRAM}/-100123",
        "api.telegram.org",
        f"/bot{TELEGRAM}/sendMessage",
        lambda body: body["text"],
    ),
    "ntfy": ("ntfy://my-topic", "ntfy.sh", "/", lambda body: f"{body['title']}\n{body['message']}"),
}


@pytest.mark.parametrize("name", CASES)
def test_service_gets_the_whole_message(name: str, standins: Services) -> None:
    url, host, path, text_of = CASES[name]

    (answer,) = sent(url)

    request = standins.requests[-1]
    assert (answer["name"], answer["accepted"], answer["text"]) == (name, True, "accepted (HTTP 200)")
    assert (request.host, request.path) == (host, path)
    is_whole(text_of(request.json))


def is_whole(text: str) -> None:
    assert "CRITICAL hang (data_loading): rank 3 - 4711, gpu-17" in text
    assert "rank 3 waits for its data loader" in text
    assert "Look at the workers of rank 3." in text
    assert "http://127.0.0.1:9095" in text and "ssh -L 9095:127.0.0.1:9095 gpu-17" in text
    assert "diag replay " in text and "/runs/a b" in text
    assert "api_key=***" in text.replace("\\", "") and "abcd1234" not in text


@pytest.mark.parametrize(
    "url",
    [
        f"https://hooks.slack.com/services/{SLACK}",
        "https://open.feishu.cn/open-apis/bot/v2/hook/ab-c12",
        "https://open.larksuite.com/open-apis/bot/v2/hook/ab-c12",
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=ab-c12",
        f"https://discord.com/api/webhooks/{DISCORD}",
    ],
)
def test_address_as_the_service_shows_it_is_taken(url: str, standins: Services) -> None:
    (answer,) = sent(url)

    assert answer["accepted"], answer
    assert url.startswith(f"https://{standins.requests[-1].host}/")
    assert "Content-Type" in standins.requests[-1].headers


@pytest.mark.parametrize(
    ("url", "host", "answer", "said"),
    [
        ("dingtalk://abc123", "oapi.dingtalk.com", {"errcode": 310000, "errmsg": "sign not match"}, "310000 sign not match"),
        ("wecombot://ab-c12", "qyapi.weixin.qq.com", {"errcode": 93000, "errmsg": "invalid webhook url"}, "93000 invalid webhook url"),
        ("feishu://ab-c12", "open.feishu.cn", {"code": 19024, "msg": "Key Words Not Found"}, "19024 Key Words Not Found"),
        ("lark://ab-c12", "open.larksuite.com", {"code": 19021, "msg": "sign match fail"}, "19021 sign match fail"),
    ],
)  # fmt: skip
def test_message_that_is_refused_with_status_200_was_not_taken(
    url: str, host: str, answer: Any, said: str, standins: Services
) -> None:
    standins.answers[host] = (200, answer)

    (found,) = sent(url)

    assert found["text"] == f"refused (HTTP 200): {said}"
    assert not found["accepted"] and not found["again"]


def test_answer_is_told_without_the_address_that_is_in_it(standins: Services) -> None:
    standins.answers["hooks.slack.com"] = (404, f"no_service at {SLACK} for TIiajkdnlazkcOXrIdevi7")

    (found,) = sent(f"slack://{SLACK}")

    assert found["text"] == "refused (HTTP 404): no_service at ***/***/*** for ***"


def test_service_that_is_out_of_order_is_tried_again_later(standins: Services) -> None:
    standins.answers["discord.com"] = (503, "busy")

    found, other = sent(f"discord://{DISCORD}", f"slack://{SLACK}")

    assert (found["accepted"], found["again"], found["text"]) == (False, True, "refused (HTTP 503): busy")
    assert other["accepted"]


def test_service_that_is_not_there_is_told_with_the_reason() -> None:
    found, webhook = sent(
        f"json://127.0.0.1:{free_port()}/secret-path", f"http://127.0.0.1:{free_port()}/secret-path"
    )

    assert found["text"] == webhook["text"] == "cannot be reached: Connection refused"
    assert (found["name"], webhook["name"], found["again"]) == ("webhook 1", "webhook 2", True)


def test_mail_is_sent() -> None:
    with mail_server() as (port, taken):
        (answer,) = sent(f"mailto://127.0.0.1:{port}/?from=diag@example.com&to=me@example.com")

    assert (answer["accepted"], answer["text"]) == (True, "accepted")
    (mail,) = taken
    assert (
        "Subject: CRITICAL hang" in mail.replace("=?utf-8?q?", "").replace("_", " ")
        and "To: me@example.com" in mail
    )


def test_own_webhook_gets_text_and_finding_as_json_and_needs_no_library(standins: Services) -> None:
    (answer,) = ask(
        {"event": EVENT, "lang": "en"}, [(f"http://127.0.0.1:{standins.port}/alerts?x=1", "webhook")]
    )

    (request,) = standins.requests
    assert answer["accepted"]
    assert request.json["schema"] == "diag.notice/1"
    assert (request.json["event"], request.json["title"]) == (
        "finding",
        "CRITICAL hang (data_loading): rank 3 - 4711, gpu-17",
    )
    assert request.json["changes"][0]["finding"]["ranks"] == [3]
    assert "token" not in request.json["run"] and b"abcd1234" not in request.body
    is_whole(f"{request.json['title']}\n{request.json['text']}")


def test_json_of_apprise_is_sent(standins: Services) -> None:
    (answer,) = sent(f"json://127.0.0.1:{standins.port}/alerts")

    assert answer["accepted"]
    request: Request = standins.requests[0]
    is_whole(f"{request.json['title']}\n{request.json['message']}")


def test_message_is_in_the_language_of_the_run(standins: Services) -> None:
    sent("feishu://ab-c12", lang="zh")

    text = standins.requests[0].json["content"]["text"]
    assert "严重 hang (data_loading): rank 3" in text
    assert "页面：" in text and "从别处访问：" in text


def test_long_message_fits_every_service_and_keeps_where_the_evidence_is(standins: Services) -> None:
    event = {**EVENT, "changes": [{**EVENT["changes"][0], "finding": {**FINDING, "summary": "等待" * 3000}}]}  # type: ignore[index]

    ask({"event": event, "lang": "en"}, [(f"http://127.0.0.1:{standins.port}/", "webhook")])

    text = standins.requests[0].json["text"]
    assert len(text.encode()) <= 1800
    assert "...\nPage: http://127.0.0.1:9095" in text and text.endswith("diag replay '/runs/a b'")


def test_message_names_the_bundle_that_was_kept(standins: Services) -> None:
    event = {**EVENT, "run": {**EVENT["run"], "evidence": ["/runs/a b/dumps/e.tar.gz"]}}  # type: ignore[dict-item]

    ask({"event": event, "lang": "en"}, [(f"http://127.0.0.1:{standins.port}/", "webhook")])

    text = standins.requests[0].json["text"]
    assert "\nKept when it was told: diag replay '/runs/a b/dumps/e.tar.gz'\ndiag replay '/runs/a b'" in text
