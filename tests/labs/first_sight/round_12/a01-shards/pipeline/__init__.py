from .reader import ShardReader
from .batching import collate
