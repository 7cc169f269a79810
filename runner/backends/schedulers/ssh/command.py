"""How ssh is called: by the job's controller, and before it by the check whether the nodes are ready."""

from __future__ import annotations

from runner.model.plan import ListedHosts

# No person is there to answer ssh's questions, and a lost node is noticed within 45 s. Names, keys, routes and
# which hosts to trust come from the user's configuration; nothing here loosens it.
OPTIONS = (
    *("-T", "-x"),
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=3"),
    # A connection that is shared would live on after its job, and hold its files open.
    *("-o", "ControlMaster=no"),
    *("-o", "ClearAllForwardings=yes"),
)
# The command for a node's login shell, of any kind: all else goes through standard input.
REMOTE = "exec bash -s"


def command_line(hosts: ListedHosts) -> tuple[str, ...]:
    """The program and its options; ``-- HOST`` and REMOTE come after them."""
    return ("ssh", *(("-F", hosts.config) if hosts.config else ()), *OPTIONS)
