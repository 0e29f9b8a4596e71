"""Start a program in one of the slots of this machine, so that two never share a slot."""
import fcntl
import os
import sys


def take(slot):
    path = os.path.join(os.environ["WORK"], f"slot{slot}")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.set_inheritable(fd, True)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())


def main():
    rank = int(os.environ["RANK"])
    slot = rank % int(os.environ["SLOTS"])
    take(slot)
    os.environ["SLOT"] = str(slot)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
