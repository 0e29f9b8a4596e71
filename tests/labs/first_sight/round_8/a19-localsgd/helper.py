"""Waits for commands on a named pipe (`echo lr 0.01 > control`), as long as the run lives."""
import os
import sys


def main(pipe, parent):
    while os.path.exists(pipe):
        with open(pipe) as f:
            for line in f:
                with open(pipe + ".log", "a") as log:
                    log.write(line)
                if line.strip() == "quit":
                    return


main(sys.argv[1], int(sys.argv[2]))
