import os


class Sample:
    """One dialogue; short ones live in memory, long ones stay on disk until somebody looks."""

    def __init__(self, uid, length, root):
        self.uid, self.length, self.root = uid, length, root
        self._raw = None

    @property
    def on_disk(self):
        return self.length > 900

    def raw(self):
        if self._raw is None:
            self._raw = open(os.path.join(self.root, "long.bin"), "rb")
        self._raw.seek(self.uid % 64)
        return self._raw.read(32)

    def features(self):
        head = self.raw() if self.on_disk else bytes((self.uid * k) % 251 for k in range(32))
        return [b / 255.0 for b in head]
