"""What each thread of a rank and of its children waits for, by what the kernel shows of it: no ptrace, no stop.

`collect` reads the raw facts (stat, wchan, syscall of every thread; what the file descriptors, futexes and children
in their arguments are), `parse` says from those facts alone what each thread waits for, and who could end that.
"""

from diag.sources.waits.collect import SOURCE, WaitReader
from diag.sources.waits.parse import parse

__all__ = ["SOURCE", "WaitReader", "parse"]
