import torch
import torch.nn as nn


class DocModel(nn.Module):
    """Layout labels for every page; table structure only where the page has tables."""

    def __init__(self, d=128):
        super().__init__()
        self.table_head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 7))
        self.layout_head = nn.Linear(d, 11)
        self.trunk = nn.Sequential(nn.Linear(64, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, pages, has_table):
        h = self.trunk(pages)
        layout = self.layout_head(h)
        tables = self.table_head(h[has_table]) if has_table.any() else None
        return layout, tables
