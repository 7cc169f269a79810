"""How ssh is called: by the job's controller, and before it by those who ask whether the nodes are ready."""

from __future__ import annotations

from runner.model.plan import ListedHosts

# Nobody can answer a question of ssh's, and a node that has gone is noticed within 45 s. Whom to trust, by which name
# and key and over which road, is the user's own configuration; nothing here loosens it.
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
# What the login shell of a node is asked for, whichever shell that is: all else goes through its standard input.
REMOTE = "exec bash -s"


def command_line(hosts: ListedHosts) -> tuple[str, ...]:
    """The program and its options; ``-- HOST`` and REMOTE come after them."""
    return ("ssh", *(("-F", hosts.config) if hosts.config else ()), *OPTIONS)
