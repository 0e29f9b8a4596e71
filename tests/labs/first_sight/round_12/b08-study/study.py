import json
import statistics

import torch.distributed as dist


class Pruned(Exception):
    pass


class Trial:
    """Held by the main process: reports values and compares them with earlier trials."""

    def __init__(self, number, params, history, warmup=2):
        self.number, self.params, self.history, self.warmup = number, params, history, warmup
        self.values = []

    def report(self, value, step):
        self.values.append(value)

    def should_prune(self):
        step = len(self.values) - 1
        past = [h[step] for h in self.history if len(h) > step]
        return step >= self.warmup and len(past) >= 2 and self.values[-1] > statistics.median(past)


class Follower:
    """What the other processes have in place of a Trial: the same parameters, nothing to report."""

    def __init__(self, number, params):
        self.number, self.params = number, params

    def report(self, value, step):
        pass

    def should_prune(self):
        return False


class Study:
    def __init__(self, grid):
        self.grid, self.history, self.results = grid, [], []

    def optimize(self, objective, n_trials):
        main = dist.get_rank() == 0
        for number in range(n_trials):
            box = [self.grid[number % len(self.grid)] if main else None]
            dist.broadcast_object_list(box, src=0)
            trial = Trial(number, box[0], self.history) if main else Follower(number, box[0])
            try:
                value = objective(trial)
                state = "complete"
            except Pruned:
                value, state = trial.values[-1], "pruned"
            if main:
                self.history.append(trial.values)
                self.results.append((value, box[0]))
                print(json.dumps({"trial": number, "state": state, "value": round(value, 4), **box[0]}), flush=True)
        return min(self.results, key=lambda r: r[0]) if main else None
