"""Which hubs join the others, and what is reported where one cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.agent.cluster.post import Refused, Sender
from diag.agent.hub import Hub
from diag.launch.launchers.nodes import JobNodes, nodes_of
from diag.settings import load
from tests.cluster_unit.hubs import TOKEN, OneNode


def test_hub_that_has_not_joined_takes_no_digests(tmp_path: Path) -> None:
    alone = OneNode(0, tmp_path).start()
    try:
        with pytest.raises(Refused, match="has not joined others") as refused:
            Sender(TOKEN).send(f"http://127.0.0.1:{alone.port}", "/digests", {}, 5.0)
        assert refused.value.status == 409
        with pytest.raises(Refused) as wrong:
            Sender("another").send(f"http://127.0.0.1:{alone.port}", "/digests", {}, 5.0)
        assert wrong.value.status == 401
    finally:
        alone.die()


def test_without_a_token_or_with_nodes_off_each_hub_stays_by_itself(tmp_path: Path) -> None:
    said: list[str] = []
    nodes = JobNodes(2, 0, "10.0.0.1", 29500)
    without = Hub(load(run_root=tmp_path), None, talk=said.append)
    without.cluster.join(nodes)
    off = Hub(load(run_root=tmp_path, token=TOKEN, nodes="off"), None, talk=said.append)
    off.cluster.join(nodes)
    single = Hub(load(run_root=tmp_path, token=TOKEN), None, talk=said.append)
    single.cluster.join(replace(nodes, count=1))

    assert (without.cluster.member, off.cluster.member, single.cluster.member) == (None, None, None)
    assert len(said) == 1 and "set the same DIAG_TOKEN on every node" in said[0]


@pytest.mark.parametrize(
    "given, told",
    [
        ("foo:bar", "nodes='foo:bar'"),
        ("a,b:99999", "'a,b:99999'"),
        ("a b,c", "'a b,c'"),
        ("@/no/such/file", "no such file can be read"),
        ("a,a", "names a host twice"),
    ],
)
@pytest.mark.parametrize("token", [TOKEN, None])
def test_hosts_that_cannot_be_right_are_said(
    given: str, told: str, token: str | None, tmp_path: Path
) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=token, nodes=given), None, talk=said.append)
    hub.cluster.join(nodes_of(["torchrun", "t.py"], {}, given))

    assert hub.cluster.member is None
    assert len(said) == 1 and told in said[0] and said[0].endswith("this node is judged on its own")


@pytest.mark.parametrize("given", ["auto", "off"])
def test_hosts_that_nobody_gave_are_not_spoken_of(given: str, tmp_path: Path) -> None:
    said: list[str] = []
    Hub(load(run_root=tmp_path, nodes=given), None, talk=said.append).cluster.join(
        nodes_of(["torchrun", "t.py"], {}, given)
    )

    assert said == []


@pytest.mark.parametrize("token", [None, ""])
def test_token_that_a_hub_made_up_for_itself_is_none_to_join_by(tmp_path: Path, token: str | None) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=token, host="0.0.0.0", port=0), None, talk=said.append)
    hub.token = "made up, as for every server beyond loopback"
    hub.cluster.open_port = lambda: 9095
    hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))

    assert hub.cluster.member is None
    assert "set the same DIAG_TOKEN on every node" in said[0]


def test_without_http_it_is_not_the_token_that_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=TOKEN, http=False), None, talk=said.append)
    hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))

    assert hub.cluster.member is None
    assert "leave out --no-http" in said[0] and "DIAG_TOKEN" not in said[0]


def test_hub_that_is_bound_to_loopback_by_hand_says_that_others_cannot_reach_it(tmp_path: Path) -> None:
    from diag.outputs.http.serving import Serving
    from diag.outputs.output import OutputContext

    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=TOKEN, host="127.0.0.1", port=0), None, talk=said.append)
    serving = Serving(OutputContext(hub, said.append))
    serving.start()
    try:
        hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))
    finally:
        serving.close(None, ended=True)

    assert hub.cluster.member is None
    assert any("cannot reach this one at 127.0.0.1" in line for line in said)


def test_command_that_has_ended_gets_a_server_only_where_other_nodes_ask(tmp_path: Path) -> None:
    from diag.outputs.http.serving import Serving
    from diag.outputs.output import OutputContext

    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=TOKEN, port=0), None, talk=said.append)
    serving = Serving(OutputContext(hub, said.append, has_ended=lambda: True))
    serving.start()
    assert serving.server is None
    assert serving.place == ""
    try:
        port = hub.cluster.open_port()

        assert serving.server is not None
        assert port == serving.server.port
    finally:
        serving.close(0, ended=True)
    assert not said or "open to the other nodes" in said[0]
