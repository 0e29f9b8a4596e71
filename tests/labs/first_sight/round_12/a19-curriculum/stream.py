import itertools


class Stream:
    def __init__(self, path):
        with open(path) as f:
            self.records = [[int(t) for t in line.split()] for line in f]
        self.at = itertools.cycle(range(len(self.records)))

    def batch(self, size, shortest):
        rows = []
        while len(rows) < size:
            rec = self.records[next(self.at)]
            if len(rec) >= shortest:
                rows.append(rec[-shortest:])
        return rows
