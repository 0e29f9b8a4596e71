"""What NCCL logs when something fails: verbs, transfers, ports, connections, and its own traceback."""

from __future__ import annotations

import errno
import os
import re

from diag.model import observations as facts
from diag.sources.logs.nccl_log.head import reads

# NCCL prints glibc's own text, sometimes without the number.
_ERRNO = {os.strerror(number): number for number in errno.errorcode}

# src/misc/ibvwrap.cc (HPC-X: ibvwrap.c), WARN:
#   2.18-2.31  Call to ibv_open_device failed
#   2.18-2.31  Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory       (create_qp, create_cq, alloc_pd too)
#   2.19-2.23  Call to ibv_modify_qp failed with error Connection timed out errno 110  (in 2.18 without the number)
#   2.24-2.31  Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT, next state RTR,
#              local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.0.2
#   2.24-2.31  the same and ", retrying 1/35 after 100 msec of sleep" (INFO; captured with 2.26.2): not the end of it
#   2.18-2.31  Call to ibv_poll_cq() returned -1
_CALL = re.compile(
    r"Call to (?P<call>(?:ibv|mlx5dv)_\w{1,60})(?:\(\))? (?:failed"
    r"(?: with (?:error (?P<error>.{1,120}?)(?: errno (?P<errno>-?\d{1,5}))?"
    r"|(?P<number>-?\d{1,5}) (?P<text>[^,]{1,120})(?P<more>, .*)?))?"
    r"|(?P<returned>returned -?\d{1,9}))$"
)
_PLACE = re.compile(
    r", on dev (?P<device>[^\s:,]{1,64}):(?P<port>\d{1,3}), .{0,80}?local GID index (?P<index>-?\d{1,5}), "
    r"local GID (?P<local>[^\s,]{0,64}), remote GID (?P<remote>[^\s,]{0,64})"
)
#   2.18-2.31  ibv_post_send() failed with error Invalid argument, Bad WR 0x7f10, First WR 0x7f10   (include/ibvwrap.h)
_POST = re.compile(r"(ibv_post_(?:send|recv))\(\) failed with error ([^,]{1,120})")


def _call(line: facts.NcclLine) -> facts.NcclFact | None:
    text = line.text
    if not text.startswith(("Call to ibv_", "Call to mlx5dv_")):
        return peer(line)
    if ", retrying " in text:
        return _retry(line)
    match = _CALL.match(text)
    if match is None:
        return None
    error = match["error"] or match["text"] or match["returned"] or ""
    number = match["errno"] or match["number"]
    code = int(number) if number else _ERRNO.get(error)
    place = _PLACE.match(match["more"] or "")
    if place is None:
        return facts.NcclVerbsError(line.rank, line, match["call"], error, code)
    device, port, index, *gids = place.groups()
    return facts.NcclVerbsError(
        line.rank, line, match["call"], error, code, device, int(port), int(index), *gids
    )


# src/misc/ibvwrap.cc and src/misc/socket.cc, INFO; captured on 2 x H200, 2026-11-21:
#   2.26.2  Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, ..., retrying 1/35 after 100 msec
#   2.26.2  socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep for 100 msec
#   2.28.9  socketPollConnect: connect to 192.0.2.10<37085> returned Connection refused, retrying (1/34) after sleep for 100 msec
_RETRY = re.compile(
    r"(?:Call to (?P<verbs>ibv_\w{1,60}) failed with -?\d{1,5} (?P<error>[^,]{1,120}), .{0,300}?"
    r"|\w{1,60}: (?P<call>connect)(?: to (?P<peer>\S{1,120}))? returned (?P<answer>[^,]{1,120})"
    r"), retrying \(?(?P<attempt>\d{1,6})/(?P<most>\d{1,6})\)? after "
)


def _retry(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _RETRY.match(line.text)
    if match is None:
        return None
    error, attempt, most = match["error"] or match["answer"], int(match["attempt"]), int(match["most"])
    call, peer_ = match["verbs"] or match["call"], match["peer"] or ""
    return facts.NcclRetry(line.rank, line, call, error, attempt, most, peer_, _ERRNO.get(error))


def _post(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _POST.match(line.text)
    return facts.NcclVerbsError(line.rank, line, match[1], match[2], _ERRNO.get(match[2])) if match else None


# src/transport/net_ib.cc (net_ib/p2p.cc from 2.29 on), WARN; HPC-X's ib_plugin.c the same:
#   2.12       Got completion with error 4, opcode 8983, len 0, vendor err 81
#   2.18-2.19  NET/IB : Got completion from peer 10.0.0.2<42443> with error 12, opcode 0, len 0, vendor err 129 (Send) ...
#   2.20-2.21  NET/IB : Got completion from peer 10.0.0.2<42443> with status=12 opcode=0 len=0 vendor err 129 (Send) ...
#   2.22-2.27  NET/IB: Got completion from peer 10.0.0.2<42443> with status=12 opcode=0 len=0 vendor err 129 (Send) ... hca mlx5_0
#   2.28       NET/IB: Got completion from peer 10.0.0.2<42443> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)
#              reqSize=0 vendor_err=129 req_type=Send localGid ... hca mlx5_0
#   2.29-2.31  NET/IB: Got completion from peer 10.0.0.2<42443> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)
#              vendor_err=129 localGid ... hca mlx5_0
_COMPLETION = re.compile(
    r"Got completion (?:from peer (?P<peer>\S{1,120}) )?with (?:error |status=)(?:[A-Z_]{1,60}\()?(?P<status>\d{1,4})\b"
)
_VENDOR = re.compile(r"vendor[_ ]err[= ](\d{1,10})\b")
_HCA = re.compile(r" hca (\S{1,64})$")

# src/transport/net_ib.cc (net_ib/common.cc from 2.29 on), WARN; the names of events are libibverbs'
# (ibv_event_type_str):
#   2.18-2.19  NET/IB : Got async event : port error
#   2.20-2.22  NET/IB : mlx5_0:1 Got async event : port error
#   2.23-2.27  NET/IB : mlx5_0:1 Got async error event: port error
#   2.28-2.31  NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)
#   2.23-2.31  NET/IB : mlx5_0:1 async fatal event: device fatal
#   2.23-2.31  NET/IB : mlx5_0:1 async fatal event on QP (0x7f10a8): local access violation work queue error
#   2.30-2.31  NET/IB : mlx5_0:1 async fatal event on QP (0x7f10a8) qpn=4711 handle=3 ... rq_psn=0: local work queue error
#   2.28-2.30  NET/IB : mlx5_0:1 GID table changed
#   2.31       NET/IB: ncclIbAsyncThreadMain: GID table changed on mlx5_0:1
#   2.31       NET/IB : mlx5_0:1 GID refreshed: idx 3 -> 5, gid ::ffff:10.0.0.1 -> ::ffff:10.0.0.9
#   2.31       NET/IB : mlx5_0:1 marking device with fatal error after GID-change event handler failed
#   2.30-2.31  NET/IB : mlx5_0:1 speed change detected: 400000 -> 200000 Mbps
#   2.23-2.31  NET/IB : mlx5_0:1 unknown event type (21)
_EVENT = re.compile(
    r"(?:(?P<device>[^\s:]{1,64}):(?P<port>\d{1,3}) )?(?:"
    r"Got (?:non-fatal )?async (?:error )?event ?: (?P<event>\S.{0,80}?)(?:\(-?\d{1,5}\))?"
    r"|async fatal event(?: on (?:CQ|QP|SRQ)[^:]{0,300})?: (?P<fatal>\S.{0,80})"
    r"|(?P<dying>marking device with fatal error after GID-change event handler failed)"
    r"|(?P<other>GID table changed|GID refreshed: .{1,200}|speed change detected: .{1,80}|unknown event type \(-?\d{1,5}\))"
    r")$"
)
# Those that 2.23 and later call fatal; before, they came as "Got async event".
_FATAL = re.compile(r"(?:catastrophic|work queue|CQ) error$")
_GID_TABLE = re.compile(r"\w{1,60}: GID table changed on ([^\s:]{1,64}):(\d{1,3})$")

# src/transport/net_ib.cc, WARN; a device that a container may not open, or a too old rdma-core:
#   2.18-2.31  NET/IB : Unable to open device mlx5_0
#   2.18-2.31  NET/IB : Unable to query device mlx5_0
#   2.18-2.19  NET/IB : Unable to query port 1            2.20-2.31  NET/IB : Unable to query port_num 1
_UNABLE = re.compile(r"Unable to (?:(open|query) device (\S{1,64})|query port(?:_num)? (\d{1,3}))$")


def ib_error(line: facts.NcclLine, message: str) -> facts.NcclFact | None:
    """`message` is the text less "NET/IB :"."""
    if "ot completion " in message:
        match = _COMPLETION.match(message)
        if match is None:
            return None
        vendor, hca = _VENDOR.search(message), _HCA.search(message)
        code, device = int(vendor[1]) if vendor else None, hca[1] if hca else ""
        return facts.NcclCompletionError(
            line.rank, line, match["peer"] or "", int(match["status"]), code, device
        )
    if match := _EVENT.match(message):
        port = int(match["port"]) if match["port"] else None
        event = match["event"] or match["other"] or match["fatal"] or match["dying"]
        fatal = not (match["event"] or match["other"]) or _FATAL.search(event) is not None
        return facts.NcclPortEvent(line.rank, line, match["device"] or "", port, event, fatal)
    if match := _GID_TABLE.match(message):
        return facts.NcclPortEvent(line.rank, line, match[1], int(match[2]), "GID table changed")
    match = _UNABLE.match(message)
    if match is None:
        return None
    if match[3]:
        return facts.NcclVerbsError(line.rank, line, "ibv_query_port", "", port=int(match[3]))
    return facts.NcclVerbsError(line.rank, line, f"ibv_{match[1]}_device", "", device=match[2])


def _got(line: facts.NcclLine) -> facts.NcclFact | None:
    return ib_error(line, line.text)


# src/misc/socket.cc (src/os/linux.cc from 2.29 on), WARN:
#   2.18-2.31  socketProgress: Connection closed by remote peer node2<42830>     (2.12: Net : Connection closed by remote peer)
#   2.18-2.23  socketProgressOpt: Call to recv from 11.1.128.128<52035> failed : Connection reset by peer
#   2.24-2.28  socketProgressOpt: Call to send to 10.44.137.149<52905> failed : Connection reset by peer
#   2.29-2.31  ncclOsSocketProgressOpt: Call to recv from 10.0.0.2<52905> failed : Connection reset by peer
#   2.18-2.23  socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort
#   2.24-2.26  socketStartConnect: Connect to 10.0.0.2<45763> failed : Connection refused      (2.12: Net : Connect to ...)
#   2.20-2.23  socketPollConnect: Connect to 10.0.0.2<45763> returned 111(Connection refused) errno 115(Operation now in progress)
#   2.27-2.28  socketPollConnect to 10.0.0.2<45763> failed with error Connection refused      (2.29-2.31: ncclOsSocketPollConnect)
#   2.18-2.23  socketPollConnect: exceeded timeouts (20000)
_PEER = re.compile(
    r"(?:\w{1,60}:? |Net : )?(?:"
    r"(?P<closed>Connection closed by remote peer) (?P<p1>\S{1,120})"
    r"|Call to (?:recv|send)(?: from| to)? (?P<p2>\S{1,120}) failed ?: (?P<e2>\S.{0,120})"
    r"|Connect to (?P<p3>\S{1,120}) failed ?: (?P<e3>\S.{0,120})"
    r"|Connect to (?P<p4>\S{1,120}) returned -?\d{1,5}\((?P<e4>[^()]{1,120})\).{0,120}"
    r"|to (?P<p5>\S{1,120}) failed with error (?P<e5>\S.{0,120})"
    r"|(?P<exceeded>exceeded (?:retries|timeouts) \(\d{1,9}\))"
    r")$"
)


def peer(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _PEER.match(line.text)
    if match is None:
        return _retry(line) if ", retrying (" in line.text else _other_net(line)
    found = match.groupdict()
    address = next((text for name, text in found.items() if text and name[0] == "p"), "")
    error = next(text for name, text in found.items() if text and name[0] != "p")
    return facts.NcclPeerLost(line.rank, line, address, error)


# src/misc/socket.cc; two ranks on two H200, one on played InfiniBand and one on sockets, 2026-11-21. The
# numbers are those of ncclSocketType (include/socket.h): theirs, then ours.
#   2.18.3, 2.21.5  socketFinalizeAccept: wrong type 3 != 4                                                      (WARN)
#   2.27.5, 2.28.9  socketFinalizeAccept from 192.0.2.11<40864>: wrong type 3 != 4                               (WARN)
#   2.30.7          socketFinalizeAccept from 192.0.2.11<40864>: wrong socket type (peer 3 != expected 4 -- ...  (INFO)
_OTHER_NET = re.compile(
    r"\w{0,20}[sS]ocketFinalizeAccept(?: from (\S{1,120}))?: wrong (?:type|socket type \(peer) ([34]) != (?:expected )?([34])\b"
)
_SOCKET_TYPES = {"3": "Socket", "4": "IB"}


def _other_net(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _OTHER_NET.match(line.text)
    if match is None:
        return None
    return facts.NcclNetDiffers(
        line.rank, line, _SOCKET_TYPES[match[2]], _SOCKET_TYPES[match[3]], match[1] or ""
    )


# src/include/checks.h, INFO; captured with 2.28.9:
#   2.18-2.31  init.cc:126 -> 5
#   2.18-2.31  group.cc:75 -> 6 [Async thread]            proxy.cc:874 -> 6 [Progress Thread]
#   2.30-2.31  init.cc:126 (ncclCommInitRankFunc) -> 5
_RESULT = re.compile(r"[\w./+~-]{1,200}:\d{1,6}(?: \([^\s]{1,200}\))? -> (?P<code>(?!0(?!\S))\d{1,3})(?!\S)")
result = reads(facts.NcclResult, _RESULT)


# rdma-core 44, stderr of a container without the provider of its device, seen with soft-RoCE:
#   libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot open shared object file: ...
# the same library (libibverbs/init.c), older: libibverbs: Warning: couldn't load driver 'mlx5':
# libmlx5-rdmav2.so: ...
#   libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0
_DRIVER = re.compile(
    r"libibverbs: Warning: (?:couldn't load driver '(?P<driver>[^']{1,120})'"
    r"|no userspace device-specific driver found for (?P<device>\S{1,120}))"
)


def driver_missing(text: str, rank: int | None) -> facts.VerbsDriverMissing | None:
    match = _DRIVER.search(text)
    return facts.VerbsDriverMissing(rank, match["driver"] or "", text.strip()) if match else None


READERS = {
    "Call": _call,
    "ibv_post_send()": _post,
    "ibv_post_recv()": _post,
    "Got": _got,
    "Net": peer,
    "Connect": peer,
    "Connection": peer,
}
