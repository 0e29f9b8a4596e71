"""One module a verb; each has `add(subparsers)` and `run(args) -> int`. Heavy imports stay inside `run`."""
