"""The manual pages of findings that only `diag doctor` has; those of a run stand with their detectors."""

from __future__ import annotations

__all__ = ["PAGES"]

PAGES: dict[str, str] = {
    "disk-full": """\
Meaning: too little room, or too few files, where CMD writes its checkpoints.

Evidence: statvfs of the directory that CMD names (--output_dir, --save), else of the working directory.

What to do: free space, or choose another output directory.

False alarms: a quota that the file system does not show here; a directory that another mount will cover.""",
    "hostname-resolution": """\
Meaning: a name of the rendezvous does not resolve on this node, or resolves to the wrong machine or to loopback.

Evidence: the resolver's answer for the address in CMD's flags and environment, /etc/hosts, this host's own name.

What to do: put the name into DNS or /etc/hosts of every node (docker: --add-host); in Kubernetes use an Indexed Job with a
headless Service, since pods of a plain Job have random names.

False alarms: a name that only exists once the other pod runs: look again then.""",
    "port-in-use": """\
Meaning: another program listens on the port of the rendezvous.

Evidence: a bind that fails with EADDRINUSE, and the owner's pid where /proc shows it; on other nodes, an answer that is not
diag's.

What to do: end a left-over job, or choose another MASTER_PORT.

False alarms: a job that already runs on this port, and is meant to.""",
    "rendezvous-failure": """\
Meaning: the nodes cannot meet: no address is given, nobody answers there, or not all nodes came.

Evidence: connections that were refused (nothing listens), not answered (a firewall, NetworkPolicy or security group drops
them) or have no route; with --wait on all nodes, who came.

What to do: as said with each; `diag doctor --wait 60 -- CMD` on all nodes at once tries the job's own port.

False alarms: without --wait nobody listens on node 0 before the job does: a refusal then only says that the host is there.""",
    "launch-mismatch": """\
Meaning: the nodes were started with numbers that do not fit: how many nodes there are, or which one this is.

Evidence: NNODES, NODE_RANK and their kin of each node, as CMD's flags and the environment have them.

What to do: the same number of nodes on all, and each node rank once.

False alarms: none known.""",
}
