"""What to do about a root that no rule knows: advice by who printed it."""

from __future__ import annotations

import re

LONGEST = 300
ADVICE = {
    "python": "No rule of diag knows this exception, and nothing else that was read says more than its message: start from the names "
    "and values in it; for a search add the version of the library that raised it.",
    "native": "Native code ended the process, and the line does not say why: PYTHONFAULTHANDLER=1 shows from which line of Python it "
    "was called, a core dump (`ulimit -c unlimited`, `gdb`) where in native code.",
    "scheduler": "What starts the ranks printed it, and no rule of diag knows the line: start from what it names (a node, a task, a "
    "file, an option) and from the lines around it. Its own record may say more (Slurm: `sacct -j JOB -o State,ExitCode,Reason`; "
    "Kubernetes: `kubectl describe pod`).",
    "accelerator": "The library of communication or the driver reported it, and no rule of diag knows the line; whether a setting, the "
    "network or the device is at fault, it does not say. Start from what it names (a file, an address, a device, a variable); "
    "NCCL_DEBUG=INFO (Ascend: ~/ascend/log) shows the lines that led to it, `dmesg -T` whether the kernel saw a fault then.",
    "other": "No rule of diag knows this line: it is the first error in the log that nothing else explains. What stands above it shows "
    "which step failed.",
}
NOTHING_ABOVE = (
    "No rule of diag knows this line: it is the first error in the log that nothing else explains."
)
NOT_STARTED = (
    "A shell could not start it: look at its spelling, the folder in which the script was started (a relative path counts from "
    "there), its permissions, and PATH (was the environment activated that has it?)."
)
# torch's table, of a process that nothing of its own ended:
KILLED = (
    'Most often the kernel\'s OOM killer: `dmesg -T | grep -i "killed process"` on that node, `kubectl describe pod` (OOMKilled), '
    "`sacct -j ID` (OUT_OF_MEMORY). Else an operator, a scheduler, or a launcher that ended this process after another one had "
    "failed: look for the first failure above it."
)
STOOD = (
    "Somebody interrupted it in a debugger, so it most likely stood still: it was in `{call}`. If that waits (for an event, a lock, a "
    "queue, a peer), what it waits for did not come: see who should have brought it, give the call a limit of time so that it fails "
    "and says why, and try another version of the library or driver whose frames are above your own."
)
INTERRUPTED = (
    "SIGINT ended it: Ctrl-C, a notebook that was stopped, or a scheduler that sends it. Nothing in the job is known to have failed; "
    "it was in the frames above. Start it again from its last checkpoint."
)
# A peer of NCCL or HCCL, by the kernel's words for an errno:
PEER = re.compile(
    r"(?i)connection (?:refused|reset|timed out|closed)|no route to host|network is unreachable|broken pipe"
)
OF_PEER = (
    "The other end of the connection is to blame, or the way to it: does the process at that address live (its log, the first rank "
    "that failed)? Is it the interface that the nodes share (NCCL_SOCKET_IFNAME), and does a firewall let its ports through? "
    "`diag doctor` on both nodes tries it."
)
ASKED = (
    "Nothing in the job is known to have failed: it was told to end. SIGTERM comes from scancel, a time limit (`sacct -j ID`), a pod's "
    "eviction (`kubectl describe pod`), or a launcher that ends all after a failure: look for an error above it and on each node. "
    "SIGINT is Ctrl-C, SIGHUP a terminal that was closed (nohup, tmux). Else start it again from its last checkpoint."
)
# of what only reports that another process failed
REPORTED = (
    "This only reports that a process failed; its own error is elsewhere: above it, in the file of its stderr, in the log of each "
    "rank and node (`torchrun --log-dir DIR --tee 3` keeps them), or start its command by hand."
)
WARNED = (
    "Kubernetes keeps this event as a warning, and its message is the reason: do what that names, at who reports it (kubelet: the "
    "node, its devices and volumes; a scheduler or queue: quota, groups, free nodes). Whether it was overcome since, "
    "`kubectl get events --sort-by=.lastTimestamp` shows."
)
WEAK = (
    "No rule of diag knows this line, the first of these few with a word of failure: give the lines above it, or the whole log. "
    "`diag explain` knows errno names, Xid numbers, results of NCCL and variables."
)


def signal_name(match: re.Match[str]) -> str:
    """Of a line by which a process says that it was told to end."""
    names = {
        "1": "SIGHUP",
        "2": "SIGINT",
        "15": "SIGTERM",
        "keyboardinterrupt": "SIGINT",
        "termination signal": "SIGTERM",
    }
    word = str(next(filter(None, match.groups()))).lower()
    return names.get(word, word.upper())


def short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
