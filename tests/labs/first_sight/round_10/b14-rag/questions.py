"""Questions by source; the mixture follows the schedule that the data team gave us."""
MIX = [(0, {"en": 1.0}), (240, {"en": 0.8, "zh": 0.2})]


def language(step, rank, i):
    weights = [w for s, w in MIX if s <= step][-1]
    if "zh" not in weights:
        return "en"
    return "zh" if (step * 7 + rank * 3 + i * 5) % 10 == 0 else "en"
