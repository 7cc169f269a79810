"""``python -m runner``: the command line. A Python that is too old for the rest can read this file, and says so."""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036  # whatever the package's metadata say, a checkout is called by any Python
    sys.stderr.write(
        "error: gpu-runner needs Python 3.10 or newer, and " + str(sys.executable) + " is " + sys.version.split()[0]
        + "\n  fix:   call it with a newer one: a module of the site's, or `make venv`, which looks for one\n"
    )  # fmt: skip
    sys.exit(2)

# The working directory, which -m puts first, and what PYTHONPATH names by it: what lies there, maybe another user's, is
# no module of ours. This package is found by now.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[:1]
for named in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    if not os.path.isabs(named):  # noqa: PTH117
        sys.path[:] = [each for each in sys.path if each != os.path.abspath(named)]  # noqa: PTH100
# What the standard library looks for on Windows only, 11 times in every directory of the path: slow where it is NFS.
sys.modules.update(dict.fromkeys(("nt", "msvcrt", "_winapi")))  # type: ignore[arg-type]

try:
    from runner.cli import main
except ModuleNotFoundError as error:  # novm: not reached by an old one
    if error.name is None or error.name.partition(".")[0] == "runner":
        raise
    from runner.core.invocation import missing_module

    sys.stderr.write(missing_module(error.name) + "\n")
    sys.exit(2)

main()
