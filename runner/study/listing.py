"""The list of studies: of each a few small files a launch are read; each scheduler is queried once for all."""

from __future__ import annotations

from runner.core.errors import RunnerError
from runner.model.study import ListedStudy, StudyState
from runner.study.attempts import attempt_of, without_verdict
from runner.study.directory import StudyDirectory, ids, index, read
from runner.study.programs import of_one_program
from runner.study.ways import way


def list_studies(
    *, name: str = "", site: str = "", since_s: float = 0.0, last: int | None = None
) -> tuple[ListedStudy, ...]:
    """Studies of this user, the newest first.

    Args:
        name: that begin so. site: of this site. since_s: begun at this Unix time or later. last: at most so many.
    """
    found: list[ListedStudy] = []
    for study_id in ids():
        if last is not None and len(found) >= last:
            break
        study = read(index() / study_id)
        if study is None or not study.name.startswith(name) or (site and study.study.site != site):
            continue
        if study.study.created.timestamp() >= since_s:
            found.append(_listed(study))
    return tuple(found)


def _listed(study: StudyDirectory) -> ListedStudy:
    asked = study.study
    runs = {launch.key: study.runs(launch.key) for launch in asked.launches}
    unsettled = without_verdict(run for each in runs.values() for run in each)
    try:
        states = way(asked.way).states(unsettled) if unsettled else {}
    except RunnerError:
        states = {}
    made = {
        key: [attempt for run in each if (attempt := attempt_of(run, states.get(run.path))) is not None]
        for key, each in runs.items()
    }
    alike = of_one_program(asked.launches, made)
    proven = sum(any(attempt.state == "proven" for attempt in each) for each in alike.values())
    is_running = any(not attempt.gone for each in alike.values() for attempt in each)
    return ListedStudy(
        study=study.path.name,
        directory=str(study.path),
        name=study.name,
        state=_state(proven, len(asked.launches), is_running=is_running),
        site=asked.site,
        recipe=asked.recipe,
        gpus=asked.gpus,
        created=asked.created,
        launches=len(asked.launches),
        proven=proven,
    )


def _state(proven: int, launches: int, *, is_running: bool) -> StudyState:
    return "running" if is_running else "complete" if proven == launches else "incomplete"
