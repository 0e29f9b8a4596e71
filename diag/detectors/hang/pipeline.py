"""Who a rank waits for in a send or receive, as its stack tells: gloo's recorder keeps none (torch 2.13), and RAS
knows none."""

from __future__ import annotations

import re
from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.rank_wait import classify_rank
from diag.knowledge.flags import peer_stage
from diag.model.observations import Exchange
from diag.state.collective_fronts import Front
from diag.state.message_circle import MessageCircle, find_circle
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.state.wait_graph import Explanation, Wait

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


_MOST_SHOWN = 4  # of ranks that wait for those in a circle


class Messages:
    """Keeps the circle that it has shown: it cannot end by itself, so it lasts until one of its ranks is elsewhere."""

    def __init__(self) -> None:
        self._proven: tuple[object, ...] = ()

    def explain(self, job: JobView, *, once: bool) -> Explanation | None:
        """A circle of ranks that all slept in these calls at one moment. `once`: evidence that is one moment."""
        exchanges: dict[int, Exchange] = {}
        for rank in job.alive_ranks():
            call = rank.exchange or (rank.judged.exchange if rank.judged is not None else None)
            if call is not None:
                exchanges[rank.rank] = call
        circle = find_circle(exchanges)
        if circle is None:
            return None
        ranks = [job.ranks[rank] for rank in circle.ranks]
        key = tuple((rank.rank, rank.placement.pid, exchanges[rank.rank]) for rank in ranks)
        if not once and key != self._proven and not _slept_at_once(ranks):
            return None
        self._proven = key
        if same_branch(circle, job):
            circle = replace(circle, turned=tuple(sorted(circle.ranks)))
        waiting = {rank: Wait("", "", 0, _words(exchanges[rank])) for rank in exchanges}
        return Explanation("message_circle", circle.turned, waiting, circle=circle)


def same_branch(circle: MessageCircle, job: JobView) -> bool:
    """Two ranks send to each other, or receive, at one line under an `if`, which thus chose the same for both: neither has
    counted wrongly."""
    first, *others = (path_of(job.ranks[rank].judged) for rank in circle.ranks)
    if len(others) != 1 or not first or not others[0] or first[-1] != others[0][-1]:
        return False
    place = job.program.at(first[-1])
    return place is not None and any(one.kind in ("if", "elif", "else") for one in place.around)


def _slept_at_once(ranks: list[RankView]) -> bool:
    if any(rank.exchange is None for rank in ranks):
        return False
    return max(rank.asleep[0] for rank in ranks) < min(rank.asleep[1] for rank in ranks)


def format_circle(circle: MessageCircle) -> str:
    """ "rank 1 waits to receive from rank 2, which waits to receive from rank 1; rank 0 waits to send to rank 1"."""
    at = circle.ranks.index(circle.turned[0])
    ordered = (*circle.ranks[at:], *circle.ranks[:at])
    text = f"rank {ordered[0]} " + ", which ".join(
        f"waits to {_words(circle.exchanges[rank])}" for rank in ordered
    )
    shown = [f"rank {rank} waits to {_words(circle.exchanges[rank])}" for rank in circle.behind[:_MOST_SHOWN]]
    more = len(circle.behind) - len(shown)
    return "; ".join([text, *shown]) + (f", and {more} more" if more else "")


def _words(call: Exchange) -> str:
    tag = f" (tag {call.tag})" if call.tag else ""
    return f"send to rank {call.peer}{tag}" if call.sends else f"receive from rank {call.peer}{tag}"


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


# --- a send or receive that was begun before

_BEGINS = re.compile(r"\b(?:isend|irecv|batch_isend_irecv|P2POp)\b")  # of torch.distributed
_WAITS = re.compile(r"\.wait\(")


def state_of(rank: RankView, job: JobView) -> str:
    """That of its stack; "joined" also where the text says that it waits for a peer."""
    found = classify_rank(rank)
    return "joined" if found in ("outside", "gpu") and awaited_message(rank, job) else found


def awaited_message(rank: RankView, job: JobView) -> str:
    """The statement that began a send or receive which it waits for (isend, irecv): the wait itself is C code without a
    name, so the program's text has to show it. Empty where it waits for something else, or that is not known."""
    thread = rank.judged
    own = path_of(thread)
    if thread is None or not own or thread.frames[-1] != own[-1]:
        return ""  # what is called there has frames of its own
    place = job.program.at(own[-1])
    if place is None or not _WAITS.search(place.text):
        return ""
    made = place.made or place.text
    return made if _BEGINS.search(made) else ""
