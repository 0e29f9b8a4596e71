import dataclasses


@dataclasses.dataclass
class Conf:
    steps: int = 1200
    save_every: int = 60
    lr: float = 0.002
    width: int = 900
    checkpoints: str = "checkpoints"
    share_mb: int = 24
