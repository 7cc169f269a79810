from runner.api import Chain as Chain
from runner.api import CheckRefusedError as CheckRefusedError
from runner.api import Options as Options
from runner.api import Run as Run
from runner.api import Study as Study
from runner.api import runs as runs
from runner.api import submit as submit

__version__: str
