"""Documents that earlier versions wrote stay readable: runs, studies, bundles, stored images, configuration, sites."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli import run
from tests.support.documents import document
from tests.support.old_documents import lay_out

VERSIONS = ("5ada5d4",)
DEMONSTRATION = "CPU, this machine: demonstration, no performance claim"
# Name of a run -> outcome, images/s, exit code of `wait`.
RUNS = {
    "good": ("measured", 650.6356780518219, 0),
    "plain": ("measured", 778.933678934876, 0),
    "again": ("measured", 775.266111546498, 0),
    "unjudged": ("measured", 766.4356594460651, 0),
    "probe": ("ran", None, 0),
    "own": ("ran", None, 0),
    "failed": ("failed", None, 5),
    "cancelled": ("cancelled", None, 5),
    "diverged": ("not-proven", None, 6),
}
# Name of a study -> state, way, images/s of each launch.
# A study of that time has no log of its launches: a gap.
STUDIES: dict[str, tuple[str, str, list[float | None]]] = {
    "whole": ("incomplete", "separate", [395.9936, 776.7598, 772.1322, 395.1497]),
    "part": ("incomplete", "separate", [391.4012, None]),
    "together": ("incomplete", "one-allocation", [385.6726, 765.5595]),
}
Ask = Callable[..., Any]


@pytest.fixture(scope="module", params=VERSIONS)
def laid_out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("home")
    return path, lay_out(request.param, path)


@pytest.fixture
def home(laid_out: tuple[Path, dict[str, str]]) -> Path:
    return laid_out[0]


@pytest.fixture
def ask(
    laid_out: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Ask:
    """The result of a verb with ``--json``, called by the documents' owner; its exit code must be ``code``."""
    directory, variables = laid_out
    for name, place in variables.items():
        monkeypatch.setenv(name, place)
    for name in ("RUNNER_SITE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(directory)

    def call(*words: str, code: int = 0) -> Any:
        assert run([*words, "--json"]) == code
        return document(capfd.readouterr().out).result

    return call


def test_every_run_is_listed_the_newest_first(ask: Ask) -> None:
    listed = ask("status")["runs"]
    made = ["unjudged", "cancelled", "own", "probe", "diverged", "failed", "again", "plain", "good"]
    assert [each["name"] for each in listed] == made
    assert {each["name"]: each["outcome"] for each in listed} == {name: outcome for name, (outcome, *_) in RUNS.items()}
    assert {each["state"] for each in listed} == {"ended"}
    assert [each["name"] for each in ask("status", "--state", "not-submitted")["runs"]] == ["not-accepted"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_says_what_it_was_and_what_it_is_worth(name: str, ask: Ask) -> None:
    outcome, figure, code = RUNS[name]
    for verb, expected in (("show", 0), ("status", 0), ("wait", code)):
        facts = ask(verb, name, code=expected)
        verdict = facts["verdict"]
        assert (verdict["outcome"], verdict["images_per_s"]) == (outcome, figure and pytest.approx(figure))
        assert (facts["gpus"], facts["ranks"], facts["site"], facts["runtime"]) == (2, 2, "local", "native")
        assert verdict["demonstration"] == DEMONSTRATION
    assert ask("show", name)["command_line"][0] == "submit"


def test_a_run_keeps_its_arms_its_rank_at_fault_and_its_code(ask: Ask) -> None:
    assert [each["arm"] for each in ask("show", "good")["verdict"]["arms"]] == ["uncoupled", "coordination", "full"]
    assert ask("show", "failed")["verdict"]["rank"] == 1
    assert ask("show", "again")["rerun_of"] == "20261122-215054-plain-2"
    code = ask("show", "own")["code"]
    assert (code["commit"][:7], code["dirty"], code["changed"]) == ("fffe854", True, ["train.py"])


def test_logs_are_those_of_the_rank_that_failed_first(ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", "failed"]) == 0
    assert "RuntimeError: CUDA out of memory" in capfd.readouterr().out


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_its_state_and_its_launches(name: str, ask: Ask) -> None:
    state, way, figures = STUDIES[name]
    facts = ask("status", name)
    assert (facts["state"], facts["way"]) == (state, way)
    assert [each["images_per_s"] for each in facts["launches"]] == [
        each and pytest.approx(each, abs=1e-4) for each in figures
    ]


def test_what_is_missing_of_a_study_can_be_resumed(ask: Ask) -> None:
    left = ask("scale", "--resume", "part", "--dry-run")["launches"]
    assert [each["key"] for each in left] == ["g0002-full-r1"]


def test_a_run_can_be_submitted_again(ask: Ask) -> None:
    assert "--window-seconds 0.6" in ask("rerun", "plain", "--dry-run")["script"]
    assert "--window-seconds 0.6" in ask("rerun", "again", "--dry-run")["script"]
    assert "export NOTE='hello'" in ask("rerun", "probe", "--dry-run")["script"]


def test_a_report_is_the_one_that_was_made(home: Path, ask: Ask) -> None:
    made, before = ask("report", "whole", "-o", "anew"), json.loads((home / "exported/report.json").read_text())
    for key in ("title", "subtitle", "demonstration", "unit"):
        assert made[key] == before[key]
    assert [each["images_per_s"] for each in made["rows"]] == [each["images_per_s"] for each in before["rows"]]
    for now, then in zip(made["study"]["points"], before["study"]["points"], strict=True):
        assert {key: now[key] for key in then} == then  # keys are only added


def test_runs_and_studies_compare(ask: Ask) -> None:
    (point,) = ask("compare", "plain", "again")["points"]
    assert (point["verdict"], point["change"]) == ("no verdict", pytest.approx(-0.004708, abs=1e-6))
    assert [each["gpus"] for each in ask("compare", "whole", "together")["points"]] == [1, 2]
    assert {each["area"] for each in ask("diff", "plain", "good")["differences"]} >= {"plan", "verdict"}


def test_an_export_has_all_that_it_had(home: Path, ask: Ask) -> None:
    for form in ("json", "csv"):
        ask("export", "good", "again", "--format", form, "-o", f"anew.{form}")
    before, now = ((home / name).read_text() for name in ("exported/exported.json", "anew.json"))
    assert lost(json.loads(now), json.loads(before)) == []
    rows, rows_now = (
        list(csv.DictReader((home / name).read_text().splitlines())) for name in ("exported/exported.csv", "anew.csv")
    )
    assert lost(rows_now, rows) == []


def test_bundles_verify(home: Path, ask: Ask) -> None:
    facts = ask("verify", "bundles/whole.tar")
    assert [each["images_per_s"] for each in facts["runs"]] == pytest.approx(STUDIES["whole"][2], abs=1e-4)
    facts = ask("verify", "bundles/signed.tar", "--allowed-signers", "bundles/allowed_signers")
    assert (facts["signature"], facts["signer"]) == ("valid", "ada@example.org")
    altered = bytearray((home / "bundles/whole.tar").read_bytes())
    altered[len(altered) // 2] ^= 1
    (home / "altered.tar").write_bytes(altered)
    ask("verify", "altered.tar", code=6)


def test_a_bundle_of_an_old_study_verifies(ask: Ask) -> None:
    ask("export", "whole", "--bundle", "anew.tar")
    assert len(ask("verify", "anew.tar")["runs"]) == 4


def test_a_stored_image_is_found_and_whole(ask: Ask) -> None:
    (image,) = ask("images", "list")
    assert (image["reference"], image["problem"], image["digest"][:19]) == ("ada/tiny:1", "", "sha256:1dca4b728460")
    assert ask("images", "show", "ada/tiny:1")["environment"]["GREETING"] == "hello"
    assert [each["broken"] for each in ask("images", "verify")] == [""]


def test_a_site_that_was_detected_is_kept(home: Path, ask: Ask) -> None:
    site = ask("site", "show", "box-here")
    assert (site["scheduler"], site["runtimes"], site["node"]["gpus"]) == ("slurm", ["native"], 8)
    words = ("submit", "--site", "box-here", "--gpus", "16", "--recipe", "probe", "--dry-run")
    assert "#SBATCH --nodes=2" in ask(*words)["script"]


def test_a_proof_record_of_other_gpus_is_read_and_proves_nothing_here(ask: Ask) -> None:
    ((path, why),) = ask("site", "show", "local")["proven_on_gpus"]["ignored"].items()
    assert Path(path).name == "local-native-0aae0ce6.json"
    assert "its GPUs are not those here" in why


def test_the_configuration_gives_account_and_scratch(ask: Ask) -> None:
    words = ("submit", "--site", "perlmutter", "--gpus", "4", "--image", "registry.nersc.gov/m1/x:1", "--dry-run")
    assert "#SBATCH --account=m5678_g" in ask(*words, code=3)["script"]


def lost(now: Any, before: Any, where: str = "") -> list[str]:
    """What of a JSON value is not there any more, or is another; what was added does not count."""
    if isinstance(before, dict):
        return [each for key, value in before.items() for each in lost(now.get(key), value, f"{where}.{key}")]
    if isinstance(before, list):
        return [each for at, value in enumerate(before) for each in lost(now[at], value, f"{where}[{at}]")]
    return [] if now == before else [f"{where}: {before} -> {now}"]
