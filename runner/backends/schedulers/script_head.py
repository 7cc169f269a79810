"""The first lines of a batch script: a clean environment, the run directory."""

from __future__ import annotations

from runner.backends.schedulers import supervised_script
from runner.backends.schedulers.script_parts import memlock
from runner.model.exit_codes import NO_RUN_DIRECTORY
from runner.model.plan import Plan
from runner.model.runtimes import RUNTIMES
from runner.model.step import JOB_ID, RUN_DIRECTORY

# Left over from a login shell, these change what a rank runs (a scheduler may still load the user's login
# environment); runtimes take options out of the last ones. HOSTNAME is this node's alone.
_PROXIES = "{http,https,ftp,all,no}_proxy {HTTP,HTTPS,FTP,ALL,NO}_PROXY"
_LEAKS = (
    "HOSTNAME PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV LD_PRELOAD LD_LIBRARY_PATH "
    'BASH_ENV "${!CONDA_@}" "${!OMPI_MCA_@}" "${!PMIX_MCA_@}" \\\n'
    f'  "${{!HOROVOD_@}}" {_PROXIES} \\\n'
    '  "${!PYXIS_@}" "${!APPTAINER@}" "${!SINGULARITY@}" "${!SHIFTER@}"'
)

# Of a variable's name the beginning, or the whole: what the scheduler itself sets for a job, and what a file system may
# need to let the job in.
_OF_JOBS = ("SLURM*", "PBS*", "PALS*", "GPU_DEVICE_ORDINAL", "KRB5CCNAME")
_FRESH = f"""\
set +u   # the profile reads names that are not set
runner_path=$(printenv PATH)   # bash's own default has the current directory in it
{supervised_script.only(*_OF_JOBS)}\
export PATH=/usr/local/bin:/usr/bin:/bin HOME="${{HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}}"
if [ -r /etc/profile ]; then . /etc/profile; fi   # and no start-up file of the user's
export PATH="$PATH${{runner_path:+:$runner_path}}"   # at the end: where the scheduler's clients may be
set -u
"""


def environment(plan: Plan) -> str:
    """A clean environment. Without Slurm's login shell (``slurm.export``), or where such a shell has loaded modules
    that the job builds on, it is made anew by the node's /etc/profile, which brings PATH and the module system.

    Modules are loaded whole or not at all: without their LD_LIBRARY_PATH, which is unset first, the module system would
    take them for loaded and not load them again.
    """
    in_container = RUNTIMES[plan.runtime].is_container
    on_modules = bool(plan.load) or not in_container
    unset = f"unset -v {_LEAKS}\n"
    again = unset.replace(" LD_LIBRARY_PATH", "") if on_modules else unset
    if not in_container:  # nothing of the profile may be taken out of what the program runs on, but what misleads it
        again = f"unset -v {_PROXIES}\n"
    if not plan.settings.login_shell:
        return f"{_FRESH}{again}"
    if not on_modules:
        return unset
    lines = "".join(f"  {line}\n" for line in f"{_FRESH}{again}".splitlines())
    return f'{unset}if [ -n "${{LOADEDMODULES-}}" ]; then   # of a login shell: loaded anew, and whole\n{lines}fi\n'


def head(plan: Plan, job: str, directory: str) -> str:
    """The first lines: a strict shell, a clean environment, the run directory.

    Args:
        job, directory: shell code of the job's id and of the directory that the job was submitted from.
    """
    return f"""\
{environment(plan)}\
export USER="${{USER:-$(id -un)}}"
{memlock(plan)}

{JOB_ID}={job}
{RUN_DIRECTORY}={directory}
cd -- "${RUN_DIRECTORY}" || exit {NO_RUN_DIRECTORY}
"""
