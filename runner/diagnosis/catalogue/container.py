"""What container runtimes say when a container does not start: the table of runtimes has their patterns."""

from __future__ import annotations

from runner.diagnosis.failure import Failure
from runner.model.runtimes import RUNTIMES

_OF_RUNTIMES = tuple(facts.failure for facts in RUNTIMES.values() if facts.failure)

FAILURES = (
    Failure(
        code="image-lost",
        source="container log",
        # ENOTCONN: the process that served the image to the ranks of this node is gone.
        pattern=r"(?i)^(?=.*(?:ch-run|container|squashfuse)).*transport endpoint is not connected",
        cause="the container did not start on any node",
        fix="see the rank that ended first on that node: it served the image to the others",
        who="user",
        outcome="infrastructure",
        consequence="perhaps",
    ),
    Failure(
        code="container-not-started",
        source="container log",
        pattern="(?i)" + "|".join((*_OF_RUNTIMES, "container", "cannot stage the image")),
        # What they say besides, of a container that does start.
        unless=r"printing enroot log file|child \d+ (failed|terminated)|was not started|\[INFO\]|import(ing|ed)"
        r"|starting container",
        cause="the container did not start on any node",
        fix="see the runtime's line; convert the image again if it is damaged, or ask the site about the runtime",
        who="site",
        outcome="infrastructure",
    ),
)
