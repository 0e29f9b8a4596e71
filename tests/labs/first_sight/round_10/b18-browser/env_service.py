"""Web-browsing environments: a process beside each trainer that answers actions, slowly as pages load."""
import random
import time


def serve(conn, seed):
    rnd = random.Random(seed)
    state = [rnd.random() for _ in range(16)]
    while True:
        msg = conn.recv()
        if msg is None:
            return
        time.sleep(rnd.uniform(2.0, 3.4))         # a page loads
        target = msg["action"] % 16
        reward = state[target]
        state[target] = rnd.random()
        conn.send({"obs": list(state), "reward": reward})
