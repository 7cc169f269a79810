"""A program that starts ranks that no reader of its text sees: each start of it has a world of its own."""

import subprocess

words = ["torchrun", "--standalone", "--nproc-per-node", "1", "train.py", "torch"]
subprocess.run(words, check=True)
