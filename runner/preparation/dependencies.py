"""Dependencies on runs: ``afterok:RUN`` with the ids of their jobs, as schedulers take it."""

from __future__ import annotations

import re

import msgspec

from runner.core.errors import UsageError
from runner.jobs.lookup import find
from runner.jobs.states import scheduler_of
from runner.model.request import Request
from runner.model.site import Site

_NAMED = re.compile(r"(?<=:)[^:,?+]+")
_JOB_ID = re.compile(r"\d+(_\d+|_\*)?(\[\d*\])?(\.[\w.-]+)?", re.ASCII)


def with_job_ids(request: Request, site: Site) -> Request:
    """The request with job ids in the place of runs that its dependency names.

    Raises:
        UsageError: there is no such run, or its job is none that the site's scheduler knows.
        NotAcceptedError, UnknownStateError: as ``scheduler_of``.
    """

    def job_id(match: re.Match[str]) -> str:
        if _JOB_ID.fullmatch(match[0]):
            return match[0]
        run = find(match[0])
        _, known = scheduler_of(run)
        plan, record = run.needed_plan(), run.submitted
        if (plan.site, plan.started_by) != (site.name, site.scheduler) or (record is not None and record.allocation):
            what = f"{run.run_id} has no job of its own at {site.name}: it is a run of {plan.site}"
            raise UsageError(what, where="--dependency", fix="name a run there, or a job by its id")
        return known

    options = dict(request.scheduler_options)
    if "dependency" not in options:
        return request
    options["dependency"] = _NAMED.sub(job_id, options["dependency"])
    return msgspec.structs.replace(request, scheduler_options=tuple(options.items()))
