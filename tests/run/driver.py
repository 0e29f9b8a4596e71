"""`diag run` without its engine: the parts of this folder composed, for the tests.

python driver.py [--dir DIR] [--keep N] [--reserve N] [--say-on TEXT] [--grace S] [--events FILE] -- CMD...
"""

from __future__ import annotations

from diag.launch import signals

PREPARED = signals.prepare() if __name__ == "__main__" else None

import argparse  # noqa: E402  (the witness is forked before anything large is imported)
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NoReturn  # noqa: E402

from diag.launch import command, output_file, relay  # noqa: E402


def main(prepared: signals.Prepared) -> NoReturn:
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--keep", type=int, default=output_file.KEEP_BYTES)
    parser.add_argument("--reserve", type=int, default=1 << 20)
    parser.add_argument("--grace", type=float, default=signals.GRACE_S)
    parser.add_argument("--say-on", help="print a message of diag's own when the output contains this")
    parser.add_argument("--events", type=Path, help="a file to note reports and signals in")
    parser.add_argument("--read", action="store_true", help="look at the output, as a log source does")
    options = parser.parse_args(sys.argv[1:split])
    argv = sys.argv[split + 1 :]
    events = open(options.events, "a", buffering=1) if options.events else None  # noqa: SIM115

    def note(text: str) -> None:
        if events is not None:
            events.write(text.replace("\n", " | ") + "\n")

    closed = command.hold_closed_stdio()
    folder = options.dir or Path(tempfile.mkdtemp(prefix="run-"))
    try:
        outlets = relay.open_outlets(
            folder, keep_bytes=options.keep, reserve_bytes=options.reserve, report=note, closed=closed
        )
    except output_file.OutputFileError as error:
        note(str(error))
        outlets = ()

    def on_output(stream: str, data: bytes, offset: int) -> None:
        if options.say_on and options.say_on.encode() in data:
            relayed.say("[diag] message")

    relayed = relay.Relay(
        outlets, on_output=on_output if options.say_on or options.read else None, report=note
    )
    fds = {outlet.stream: outlet.lane.write_fd for outlet in outlets}
    both = fds.get("both")
    prepared.end_if_signalled()
    try:
        cmd = command.start(
            argv,
            stdout=fds.get("stdout", both),
            stderr=fds.get("stderr", both),
            env={**os.environ, **command.terminal_env(os.isatty(1))},
            sigmask=prepared.mask,
        )
    except command.CommandError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    forwarder = signals.Forwarder(
        prepared,
        cmd,
        before_stop=lambda: relayed.flush(0.5),
        on_signal=lambda signo, forwarded: note(
            f"signal {signo} {'forwarded' if forwarded else 'not forwarded'}"
        ),
        grace_s=options.grace,
    )
    for outlet in outlets:
        outlet.lane.close_write()
    forwarder.start()
    relayed.start()
    note(f"started {cmd.pid} witness {prepared.witness.pid}")
    cmd.wait()
    forwarder.close()
    relayed.drain()
    for outlet in outlets:
        outlet.lane.close()
    command.exit_as(cmd)


if PREPARED is not None:
    main(PREPARED)
