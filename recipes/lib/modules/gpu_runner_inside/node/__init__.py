"""What a node's first launcher reads beside its program: counters of the fabric's ports, GPUs, processors."""
