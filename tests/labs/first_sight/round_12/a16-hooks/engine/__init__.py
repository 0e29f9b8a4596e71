from .trainer import Trainer
from .callbacks import Callback, Progress, LanguageReport
