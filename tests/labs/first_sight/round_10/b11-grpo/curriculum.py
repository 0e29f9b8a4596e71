from generation import GenerationConfig

STAGES = [
    # from step, tokens at least, tokens at most: first learn the form, then to come to an end
    (0, 24, 24),
    (25, 2, 72),
]


def stage_config(step):
    chosen = [s for s in STAGES if s[0] <= step][-1]
    return GenerationConfig(min_new_tokens=chosen[1], max_new_tokens=chosen[2])
