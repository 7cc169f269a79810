"""Where the client programs of a site's scheduler are."""

from __future__ import annotations

from pathlib import Path

from runner.core.errors import RefusedError
from runner.core.invocation import PROGRAM
from runner.model.site import Site


def clients(site: Site) -> Path | None:
    """The directory of the site's client programs; None for PATH.

    Raises:
        RefusedError: the site is a box that is not up.
    """
    if not site.box:
        return None
    from runner import box  # what makes one is long to import, and no other site needs it

    if box.inside() == site.box:
        return None
    running = box.find(site.box)
    if running is None:
        raise RefusedError(
            f"the box {site.box!r} is not up",
            where=f"site {site.name}",
            fix=f"{PROGRAM} box up --name {site.box}",
        )
    return running.bin_dir
