"""Without cosmic-ray, which only `make mutants` installs, these cannot be imported."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("cosmic_ray") else ["judge.py", "mutants.py", "operators.py"]
