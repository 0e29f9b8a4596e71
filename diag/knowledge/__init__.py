"""Tables of the field: variables of NCCL, Xids, layouts of ranks, forms of log prefixes. Knows no job."""
