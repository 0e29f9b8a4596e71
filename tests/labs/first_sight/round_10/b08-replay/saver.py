import os
import pickle
import queue
import threading


class Saver:
    """Writes states in a thread. One save may be under way: the next one waits for it."""

    def __init__(self, folder, keep=2):
        self.folder, self.keep = folder, keep
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self._run, name="saver", daemon=True)
        self.thread.start()

    def submit(self, step, state):
        self.jobs.join()
        self.jobs.put((step, state))

    def _run(self):
        while True:
            step, state = self.jobs.get()
            path = os.path.join(self.folder, f"state-{step:06d}.pkl")
            with open(path + ".part", "wb") as f:
                pickle.dump(state, f, protocol=pickle.HIGHEST_PROTOCOL)
            os.replace(path + ".part", path)
            old = sorted(n for n in os.listdir(self.folder) if n.endswith(".pkl"))[:-self.keep]
            for n in old:
                os.unlink(os.path.join(self.folder, n))
            self.jobs.task_done()

    def close(self):
        self.jobs.join()
