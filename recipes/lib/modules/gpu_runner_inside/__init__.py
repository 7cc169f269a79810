"""What runs inside a job's tasks: the launcher, and what benchmarks share. Standard library only, Python 3.8 or later.

Attributes:
    IMPORT_DIRECTORY: the directory to put on ``sys.path``. It holds this package and ``runner_meter`` only, whose names
        are unique: on a program's path they hide no module of the program or of the standard library.
"""

import os

IMPORT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
