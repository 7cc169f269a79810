"""A program that sets its place in the world itself, so that each of its processes is in one of its own."""

import os
import runpy

own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.update(own, MASTER_PORT=str(20000 + os.getpid() % 10000))
runpy.run_path("train.py", run_name="__main__")
