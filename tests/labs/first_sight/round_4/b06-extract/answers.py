import re

# "the answer is forty two apples." -> "forty two apples"
FINAL = re.compile(r"answer(?:\s+is)?:?\s+((?:[\w,']+\s?)+)\.\s*$")


def final_answer(completion):
    m = FINAL.search(completion)
    return m.group(1).strip() if m else None


def accuracy_reward(completion, gold):
    return 1.0 if final_answer(completion) == gold else 0.0


def length_penalty(completion, limit=60):
    return -0.01 * max(0, len(completion.split()) - limit)
