"""Who a pipeline stage waits for, as its stack tells: gloo's recorder keeps no send and no receive, and RAS
knows none."""

from __future__ import annotations

from diag.knowledge.parallel_layout import peer_stage
from diag.state.collective_fronts import Front
from diag.state.rank_view import RankView

_FILE = "megatron/core/pipeline_parallel/p2p_communication.py"
# megatron-core 0.12-0.18: with which stage each call exchanges, and what the peer has to call for it.
_NEXT, _PREVIOUS = 1, -1
_CALLS = {
    "recv_forward": (_PREVIOUS,),
    "send_backward": (_PREVIOUS,),
    "send_backward_recv_forward": (_PREVIOUS,),
    "recv_backward": (_NEXT,),
    "send_forward": (_NEXT,),
    "send_forward_recv_backward": (_NEXT,),
    "send_forward_recv_forward": (_NEXT, _PREVIOUS),
    "send_backward_recv_backward": (_PREVIOUS, _NEXT),
    "send_forward_backward_recv_forward_backward": (_NEXT, _PREVIOUS),
}


def is_between_stages(rank: RankView) -> bool:
    main = rank.judged
    return main is not None and any(_FILE in frame.file for frame in main.frames)


def pipeline_fronts(waiting: list[RankView], world_size: int, stages: int) -> list[Front]:
    """One front a rank that exchanges with another stage: it waits for the peers that do not exchange with it
    in turn."""
    wants: dict[int, tuple[str, set[int]]] = {}
    for rank in waiting:
        call = _call(rank)
        met = [peer_stage(rank.rank, world_size, stages, step) for step in _CALLS.get(call, ())]
        peers = {peer for peer in met if peer is not None}
        if peers:
            wants[rank.rank] = (call, peers)
    found = []
    for number, (call, peers) in sorted(wants.items()):
        missing = tuple(sorted(peer for peer in peers if number not in wants.get(peer, ("", set()))[1]))
        found.append(Front("stack", "pipeline", "pipeline", 0, call, True, (number,), missing, (), (), True))
    return found


def _call(rank: RankView) -> str:
    main = rank.judged
    for frame in main.frames if main else ():
        name = frame.function.rpartition(".")[2]
        if _FILE in frame.file and name in _CALLS:
            return name
    return ""
