"""What runs inside a job's tasks: the launcher, and what benchmarks share. Standard library only, Python 3.8 or later.

Attributes:
    IMPORT_DIRECTORY: the directory to put on ``sys.path``. Nothing but this package lies in it, and the package has a
        name that nobody else uses: on a program's path it hides no module of the program's or of the library's.
"""

import os

IMPORT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
