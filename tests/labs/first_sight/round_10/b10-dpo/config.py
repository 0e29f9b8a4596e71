from dataclasses import dataclass


@dataclass
class DPOConfig:
    model: str = "toy-160k"
    dataset: str = "pairs-helpful-v2"
    beta: float = 0.1
    steps: int = 900
    batch: int = 8
    pairs: int = 320
    ref_sync_steps: int = 60        # TR-DPO: the reference follows the policy
    out: str = "dpo_out"
    lr: float = 5e-4

    @property
    def key(self):
        return f"{self.model}/{self.dataset}/{self.beta}/{self.pairs}"
