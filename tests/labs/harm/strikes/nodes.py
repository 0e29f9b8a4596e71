"""Several nodes: cables pulled between hubs, the job hub killed or stopped while the others report to it."""

from __future__ import annotations

import random
import signal

import psutil

from tests.labs.harm.fault import send
from tests.labs.harm.trial import Running

PORT = 9095


def partition(run: Running, chance: random.Random) -> str:
    """Packets of diag's port dropped, both ways, no connection closed; for good or for a while, and again."""
    told = []
    for _ in range(chance.randrange(1, 3)):
        cut = [node for node in run.nodes if chance.random() < 0.6] or [chance.choice(run.nodes)]
        for node in cut:
            node.drop_port(PORT)
        seconds = chance.uniform(0.5, 4.0)
        run.pause(seconds)
        again = chance.random() < 0.6
        told.append(
            f"{', '.join(node.name for node in cut)} cut off for {seconds:.1f} s{'' if again else ' and on'}"
        )
        if again:
            for node in cut:
                node.filter_nothing()
    return "; ".join(told)


def pull_cables(run: Running, chance: random.Random) -> str:
    cut = [node for node in run.nodes if chance.random() < 0.5] or [run.nodes[0]]
    for node in cut:
        node.pull_cable()
    seconds = chance.uniform(0.5, 4.0)
    run.pause(seconds)
    for node in cut:
        node.plug_cable()
    return f"cable of {', '.join(node.name for node in cut)} pulled for {seconds:.1f} s"


def reset(run: Running, chance: random.Random) -> str:
    """Each packet to the job hub is answered by a reset, as by a machine that came up without its hub."""
    node = run.nodes[0]
    node.network(
        "nft",
        "add table inet resets; add chain inet resets in { type filter hook input priority 0; }; "
        f"add rule inet resets in iifname eth0 tcp dport {PORT} reject with tcp reset",
    )
    run.pause(chance.uniform(0.5, 4.0))
    if chance.random() < 0.6:
        node.filter_nothing()
    return "the job hub's port answers by resets"


def slow_link(run: Running, chance: random.Random) -> str:
    node = chance.choice(run.nodes)
    node.limit_rate("8kbit")
    run.pause(chance.uniform(2.0, 5.0))
    return f"{node.name} has 1 KB a second"


def kill_job_hub(run: Running, chance: random.Random) -> str:
    run.broken.add(0)
    return send(run.hub(0), signal.SIGKILL)


def _let_go_on(run: Running) -> None:
    """nsenter stops with what it started, and must be told as well."""
    send(psutil.Process(run.places[0].process.pid), signal.SIGCONT)
    send(run.hub(0), signal.SIGCONT)


def stop_job_hub(run: Running, chance: random.Random) -> str:
    hub, seconds = run.hub(0), chance.uniform(0.5, 4.0)
    send(hub, signal.SIGSTOP)
    run.pause(seconds)
    _let_go_on(run)
    return f"job hub stopped for {seconds:.1f} s"


def stop_job_hub_over_end(run: Running, chance: random.Random) -> str:
    hub = run.hub(0)
    send(hub, signal.SIGSTOP)
    run.until_job_ended()
    run.pause(chance.uniform(0.0, 3.0))
    _let_go_on(run)
    return "job hub stopped until the job had ended"


def kill_hub_of_node(run: Running, chance: random.Random) -> str:
    number = chance.randrange(1, len(run.nodes))
    run.broken.add(number)
    return f"hub of node {number}: {send(run.hub(number), signal.SIGKILL)}"
