"""The network between nodes: `ib_fallback` and why (`causes`, `advice`; `unlogged` where NCCL prints nothing),
and its errors."""
