import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(36, 72), nn.ReLU(), nn.Linear(72, 72), nn.ReLU())
        self.head = nn.Linear(72, 5)

    def forward(self, x):
        return self.head(self.backbone(x))


class Trainer:
    """Trains the head first and the whole net once the validation loss stops to fall."""

    def __init__(self, data, lr=0.05):
        self.data = data
        self.net = Net()
        self.lr = lr
        self.net.backbone.requires_grad_(False)
        self._wrap()

    def _wrap(self):
        self.model = DDP(self.net)
        self.opt = torch.optim.SGD([p for p in self.net.parameters() if p.requires_grad], self.lr)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.3, patience=3, threshold=0.002)

    def step(self):
        x, y = self.data.batch()
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        x, y = self.data.held_out
        val = F.cross_entropy(self.net(x), y).item()
        self.plateau.step(val)
        return val

    def maybe_unfreeze(self):
        frozen = not next(self.net.backbone.parameters()).requires_grad
        if frozen and self.opt.param_groups[0]["lr"] < 0.1 * self.lr:
            self.net.backbone.requires_grad_(True)
            self._wrap()
            return True
        return False
