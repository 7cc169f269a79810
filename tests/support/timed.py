"""The timed stand-in for training: a recipe whose steps are sleeps, whose records and proof are real."""

import json
from pathlib import Path

import msgspec

from runner.model.study import Arm, Launch, LaunchFacts
from runner.model.verdict import Verdict
from tests.support.commands import Runner

RECIPE = Path(__file__).parent / "timed_recipe"
# On this machine, with whatever Python its shell has; about 1.5 s of it are the launcher's.
SUBMIT = ("submit", "--recipe", str(RECIPE), "--runtime", "native", "--wait")
ARMS = "uncoupled,coordination,full"


def launched(run: Runner, arm: Arm, gpus: int, repeat: int, **options: object) -> LaunchFacts:
    """One launch, measured on this machine; all arms take turns in one of several ranks."""
    if gpus > 1:
        options["arms"] = ARMS
    if arm == "solo-hooks":
        options["hooks-at-one"] = "true"
    words = [word for name, value in options.items() for word in ("--set", f"{name.replace('_', '-')}={value}")]
    run(*SUBMIT, "--gpus", str(gpus), *words, code=0)
    verdict = msgspec.convert(json.loads((run.newest() / "verdict.json").read_text()), Verdict)
    launch = Launch(f"{arm}-{gpus}-{repeat}", gpus, arm, repeat, 0, arms=tuple(each.arm for each in verdict.arms))
    return LaunchFacts(launch, "proven", images_per_s=verdict.images_per_s, arms=verdict.arms)
