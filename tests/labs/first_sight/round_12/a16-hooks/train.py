import torch
import torch.distributed as dist
from torch import nn

from engine import LanguageReport, Progress, Trainer
from mixture import LANGUAGES, Mixture

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(220, 700), nn.GELU(), nn.Linear(700, 700), nn.GELU(), nn.Linear(700, 12))
    trainer = Trainer(net, Mixture(dist.get_rank()), [Progress(), LanguageReport(LANGUAGES)])
    trainer.fit(2000)
    dist.destroy_process_group()
