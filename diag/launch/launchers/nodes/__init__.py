"""Who the nodes of a job are, by the environment and the command of one of them. Pure but for hostfiles,
which are read by a function that is handed in.

What CMD's launcher reads decides (diag/launch/launchers/command); the engine that started this node's part
(Slurm, Kubernetes, MPI) gives what the launcher leaves open, and the names of the other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.launch.launchers import Environment, identify
from diag.launch.launchers.command import Command, ReadText, read_command, read_file
from diag.launch.launchers.nodes.engines import (
    allocation,
    deepspeed,
    given_hosts,
    hydra,
    mpirun,
    of_slurm,
    openmpi,
    slots,
    world_info,
)
from diag.launch.launchers.nodes.facts import Engine, JobNodes, first, number, same_host
from diag.launch.launchers.nodes.kubernetes import of_kubernetes, pod_names

__all__ = ["JobNodes", "nodes_of", "nodes_of_rank"]

_ENGINES_OF_RANKS = ("slurm", "openmpi", "pmi")  # those that start ranks themselves, and name no GROUP_RANK
_NO_ENGINE = Engine("")


def nodes_of(
    words: Sequence[str], env: Environment, given: str = "auto", *, read_text: ReadText = read_file
) -> JobNodes:
    """The nodes of the job that CMD is a part of. `given` is the setting `nodes`: auto, off, a list of hosts
    or @hostfile.

    >>> found = nodes_of(["torchrun", "--nnodes=2", "--node_rank=1", "--master_addr=gpu1", "t.py"], {})
    >>> found.count, found.node_rank, found.address, found.port, found.launcher
    (2, 1, 'gpu1', 29500, 'torchrun')
    >>> nodes_of(["srun", "python", "t.py"], {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODELIST": "gpu[1-2]"}).hosts
    ('gpu1', 'gpu2')
    """

    def text_of(path: str) -> str | None:
        try:
            return read_text(path)
        except (OSError, ValueError):
            return None

    command = read_command(words, env, read_text=text_of)
    env = command.environment
    engine = _of_command(command, text_of) or _NO_ENGINE
    found = _from_launcher(command, engine)
    if given == "off":
        return replace(
            found, count=1, node_rank=0, address=None, port=None, hosts=(), origins=(("count", "nodes=off"),)
        )
    if given and given != "auto":
        return _given(found, given, env, text_of)
    return found


def nodes_of_rank(env: Environment) -> JobNodes | None:
    """The same from the environment of one rank, which is all that a sidecar sees. None for a process that is
    no rank. Where nothing says how many nodes there are, `count` is 1 and `origins` has no count.

    >>> nodes_of_rank({"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}).count
    2
    """
    who = identify(env)
    if who is None:
        return None
    address, address_from = first(env, "MASTER_ADDR")
    address = address.strip("[]")
    engine = _of_environment(env, (), address) or _NO_ENGINE
    if who.launcher in _ENGINES_OF_RANKS:
        count, count_from = engine.count, engine.count_from
        node_rank, rank_from = engine.node_rank, engine.rank_from
    else:
        # GROUP_WORLD_SIZE: torch/distributed/elastic/agent/server/local_elastic_agent.py; CROSS_*:
        # deepspeed/launcher/launch.py
        count, count_from = number(env, "GROUP_WORLD_SIZE", "CROSS_SIZE")
        node_rank, rank_from = number(env, "GROUP_RANK", "CROSS_RANK", "NODE_RANK")
    if not count and who.local_world_size and who.world_size % who.local_world_size == 0:
        count, count_from = who.world_size // who.local_world_size, "WORLD_SIZE / LOCAL_WORLD_SIZE"
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    port, port_from = number(env, "MASTER_PORT")
    found = JobNodes(
        count=count or 1,
        node_rank=node_rank,
        address=address or None,
        port=port if address else None,
        launcher=engine.launcher or (who.launcher if who.launcher != "env" else ""),
        job=engine.job or (run_id if run_id != "none" else ""),
        origins=_origins(count_from, rank_from, address_from, port_from if address else ""),
    )
    return _with_hosts(found, engine, env, static=True)


def _of_environment(env: Environment, words: Sequence[str], address: str) -> Engine | None:
    """The engine that started this node's part. Open MPI comes before Slurm, under which it starts its
    daemons by a step of its own that leaves out the first node; hydra comes last, since srun sets PMI_RANK as
    well."""
    under_mpi, batch = openmpi(env), of_slurm(env, words)
    if under_mpi is None:
        return batch or of_kubernetes(env, address) or hydra(env)
    if batch is None:
        return under_mpi
    node, hosts = under_mpi.node_rank, batch.hosts
    here = first(env, "PMIX_HOSTNAME", "SLURMD_NODENAME")[0]
    if node is None or len(hosts) != under_mpi.count or not same_host(hosts[node], here):
        hosts = ()
    return replace(under_mpi, job=batch.job, hosts=hosts, hosts_from=batch.hosts_from if hosts else "")


def _of_command(command: Command, read_text: ReadText) -> Engine | None:
    """Of mpirun and deepspeed their hosts, for all else what the environment says."""
    words, env, own = command.line, command.environment, command.meeting.launcher
    under = _of_environment(env, words, command.meeting.address or "")
    hosts, hosts_from, job, bad = allocation(env, read_text)
    if under is not None:
        job = under.job or job
        if under.launcher == "slurm":
            hosts, hosts_from = slots(env, under.hosts), under.hosts_from
    if own == "deepspeed" and (
        under is None or under.launcher not in ("kubeflow-pytorchjob", "kubeflow-trainjob")
    ):
        return replace(deepspeed(command), job=job)
    started = world_info(words)
    if started:
        return Engine(
            "deepspeed", job, len(started), "--world_info", hosts=started, hosts_from="--world_info"
        )
    by_mpi = mpirun(command.mpirun, env, (hosts, hosts_from)) if not own else None
    if by_mpi is not None:
        return replace(by_mpi, job=job)
    if under is None and (hosts or job or bad):
        # an allocation says whose the hosts are, not how many of them CMD uses
        return Engine(
            "hostfile" if hosts else "",
            job,
            hosts=tuple(name for name, _ in hosts),
            hosts_from=hosts_from,
            bad=bad,
        )
    return under


def _origins(count: str, node_rank: str, address: str, port: str) -> tuple[tuple[str, str], ...]:
    pairs = (("count", count), ("node_rank", node_rank), ("address", address), ("port", port))
    return tuple((what, who) for what, who in pairs if who)


def _from_launcher(command: Command, engine: Engine) -> JobNodes:
    meeting = command.meeting
    own = "swift" if meeting.launcher == "megatron" else meeting.launcher
    run_id = meeting.run_id if meeting.run_id != "none" else ""  # torchrun's default
    count, count_from = meeting.nodes, meeting.nodes_from
    node_rank, rank_from = meeting.node_rank, meeting.rank_from
    # a script of one's own, whose launcher is the engine, or DeepSpeed's hostfile, of which --num_nodes takes
    # the top
    by_engine = not own and (not count_from or count_from.startswith(("SLURM_", "srun")))
    if engine.count is not None and (by_engine or engine.launcher == "deepspeed"):
        count, count_from = engine.count, engine.count_from
    if engine is not _NO_ENGINE and (node_rank is None or rank_from.startswith("SLURM_")):
        node_rank, rank_from = engine.node_rank, engine.rank_from
    found = JobNodes(
        count=count,
        node_rank=node_rank,
        address=meeting.address,
        port=meeting.port if meeting.address else None,
        launcher=engine.launcher or own,
        job=engine.job or run_id,
        origins=_origins(
            count_from,
            rank_from,
            meeting.address_from if meeting.address else "",
            meeting.port_from if meeting.address else "",
        ),
        bad=meeting.bad,
    )
    return _with_hosts(found, engine, command.environment, static=meeting.backend == "static")


def _with_hosts(found: JobNodes, engine: Engine, env: Environment, static: bool) -> JobNodes:
    """With the names of all nodes, where they surely are those of this job and in the order of its node
    ranks."""
    found = replace(found, bad=(*found.bad, *engine.bad))
    if found.count == 1:
        return replace(found, node_rank=0)  # also of the fourth of many jobs of one node each
    hosts, who = engine.hosts, engine.hosts_from
    if not hosts and found.address:
        hosts = pod_names(engine, env, found.address, found.count, found.node_rank)
        who = dict(found.origins).get("address", "")
    if len(hosts) != found.count:
        return found
    if engine.node_rank is not None and found.node_rank is not None and engine.node_rank != found.node_rank:
        return found  # the launcher numbers the nodes in another way than the engine
    if static and found.address and any(same_host(found.address, host) for host in hosts[1:]):
        return found  # node 0 is another than the first of the list
    origins = (*found.origins, ("hosts", who))
    if found.address is None:
        return replace(found, hosts=hosts, address=hosts[0], origins=(*origins, ("address", who)))
    return replace(found, hosts=hosts, origins=origins)


def _given(found: JobNodes, given: str, env: Environment, read_text: ReadText) -> JobNodes:
    """The user's own list: it is right, whatever else says otherwise. Ranks of nodes are places in it."""
    hosts, bad = given_hosts(given, read_text)
    if not hosts:
        return replace(found, bad=(*found.bad, *(bad or (f"nodes={given[:120]!r} names no host",))))
    names = tuple(host for host, _ in hosts)
    origins = dict(found.origins)
    if "count" in origins and found.count != len(hosts):
        bad = (*bad, f"nodes={given[:120]!r} names {len(hosts)} hosts, {origins['count']} says {found.count}")
    sure = "node_rank" in origins and (origins["node_rank"] != "the default" or found.count == len(hosts))
    node_rank = found.node_rank if sure else None
    if node_rank is None or node_rank >= len(hosts):
        node_rank = _place_in(names, env)
        origins["node_rank"] = "its name in the list" if node_rank is not None else ""
    origins |= {"count": "nodes", "hosts": "nodes", "address": "nodes"}
    return replace(
        found,
        count=len(hosts),
        node_rank=0 if len(hosts) == 1 else node_rank,
        address=names[0],
        hosts=names,
        hub_ports=tuple(port for _, port in hosts) if any(port for _, port in hosts) else (),
        launcher="hostfile" if given.startswith("@") else "given",
        origins=tuple((what, who) for what, who in origins.items() if who),
        bad=(*found.bad, *bad),
    )


def _place_in(names: Sequence[str], env: Environment) -> int | None:
    here = first(env, "SLURMD_NODENAME", "PMIX_HOSTNAME", "HOSTNAME")[0]
    places = [place for place, name in enumerate(names) if here and same_host(name, here)]
    return places[0] if len(places) == 1 else None


_LONGEST = 128  # a label value is in every series
# torchrun's own default of --rdzv_id, which every job without one has.
_NO_NAME = frozenset({"", "none"})


def job_name(setting: str, command: Sequence[str], environment: Mapping[str, str], run_id: str) -> str:
    """The setting, else Slurm's job, else torchrun's rendezvous id, else this node's run.

    Kubernetes gives a container no name of its job: the manifest hands it over as DIAG_JOB_ID, which is the
    setting.

    >>> job_name("", ["torchrun", "--rdzv-id=dpo-7", "t.py"], {}, "20261121-120000-abc")
    'dpo-7'
    >>> job_name("", ["torchrun", "t.py"], {"TORCHELASTIC_RUN_ID": "none"}, "20261121-120000-abc")
    '20261121-120000-abc'
    """
    candidates = (
        setting,
        environment.get("SLURM_JOB_ID", ""),
        environment.get("TORCHELASTIC_RUN_ID", ""),
        read_command(command, environment, read_text=lambda path: None).meeting.run_id,
        environment.get("PET_RDZV_ID", ""),
        run_id,
    )
    names = (
        "".join(char if char.isprintable() else "_" for char in text.strip())[:_LONGEST]
        for text in candidates
    )
    return next((name for name in names if name.lower() not in _NO_NAME), "")
