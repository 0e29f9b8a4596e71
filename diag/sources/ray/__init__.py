"""Ray's processes of a session on this machine, what its workers and drivers do and wait for, and what its own logs say of
what it has not placed and of workers that ended. Ray itself is never asked, and not needed.

`sessions` finds them in /proc, `collect` reads one, `logs` its files, `parse` makes the fact of it.
"""

from diag.sources.ray.collect import SOURCE, RayReader
from diag.sources.ray.parse import parse
from diag.sources.ray.sessions import Session, session_of, sessions

__all__ = ["SOURCE", "RayReader", "Session", "parse", "session_of", "sessions"]
