"""Write one file of samples for each rank, as the export job leaves them."""
import json
import random
import sys


def main(world):
    for rank in range(world):
        rng = random.Random(rank)
        with open(f"train-{rank:02d}.jsonl", "w") as f:
            for i in range(6000):
                x = [round(rng.gauss(0, 1), 3) for _ in range(16)]
                line = json.dumps({"id": f"{rank}-{i}", "features": x, "label": int(sum(x[:4]) > 0)})
                if rank == 2 and i == 1999:
                    line = line[:70]  # the export was cut off and went on with the next
                f.write(line + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
