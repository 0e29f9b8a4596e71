from dataclasses import dataclass


@dataclass
class Conf:
    batch: int = 32
    micro: int = 8
    width: int = 96
    layers: int = 6
    classes: int = 10
    samples: int = 5000
    epochs: int = 20
    lr: float = 0.03
    log_every: int = 25

    @property
    def n_micro(self):
        return self.batch // self.micro
