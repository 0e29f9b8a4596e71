from .trainer import Trainer
from . import hooks
