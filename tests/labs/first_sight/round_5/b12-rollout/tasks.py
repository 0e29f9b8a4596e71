import random


def make_tasks(seed, n):
    """Prompts with the tokens that may follow. Arithmetic answers are free, others choose from given labels."""
    rng = random.Random(seed)
    tasks = []
    for i in range(n):
        prompt = [rng.randrange(10, 200) for _ in range(6)]
        kind = rng.choice(["sum", "sum", "copy", "choice"])
        if kind == "choice":
            labels = rng.sample(range(200, 250), rng.randint(3, 40))
            tasks.append({"kind": kind, "prompt": prompt, "allowed": labels, "max_new": 1})
        elif kind == "copy":
            tasks.append({"kind": kind, "prompt": prompt, "allowed": sorted(set(prompt)), "max_new": 4})
        else:
            tasks.append({"kind": kind, "prompt": prompt, "allowed": None, "max_new": 5})
    return tasks


def reward(task, completion):
    if task["kind"] == "choice":
        return float(completion[0] == task["allowed"][0])
    if task["kind"] == "copy":
        return sum(a == b for a, b in zip(completion, task["prompt"])) / len(completion)
    return float(sum(completion) % 10 == sum(task["prompt"]) % 10)
