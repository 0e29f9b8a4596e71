MICRO = 4            # micro-batches per batch
MICRO_SIZE = 8
WIDTH = 128
SEQ = 32
VOCAB = 200
LR = 2e-3
EPOCHS = 30
EVAL_EVERY = 25
