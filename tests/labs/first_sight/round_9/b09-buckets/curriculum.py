import bisect


class Curriculum:
    """Longest sequence allowed at a step: (from_step, tokens) pairs; shrinks for the annealing phase."""

    def __init__(self, plan):
        self.starts = [s for s, _ in plan]
        self.limits = [l for _, l in plan]

    def limit(self, step):
        return self.limits[bisect.bisect_right(self.starts, step) - 1]
