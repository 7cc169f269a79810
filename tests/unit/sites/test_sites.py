"""Site files: those that are shipped, those that extend others, and what only the user can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit, UsageError
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.request import Request
from runner.model.site import Scratch, Site, UserConfig
from runner.recipes import loader as recipes
from runner.sites.loader import names, read_config, read_site
from runner.sites.reference import reference
from runner.sites.user import Personal, account, expand_placeholders, missing_values, personal_values
from tests.support.commands import Call
from tests.support.shell_files import stand_in

OURS = 'name: ours\ndescription: ""\nextends: polaris\n'
ELVIS = Personal(account="m1234", project="hvd", scratch="/scratch/e", user="elvis")


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", names())
def test_a_shipped_site_has_only_runtimes_that_there_are_and_says_where_its_facts_are_from(name: str) -> None:
    site = read_site(name)
    assert site.name == name
    assert set(site.runtimes) <= set(RUNTIMES)
    assert "node" in site.sources
    for source in site.sources.values():
        assert source
    for key in site.sources:  # a source of a fact that is not there would be a leftover
        value: object = msgspec.to_builtins(site) | {SCHEDULERS[site.scheduler].section: site.settings}
        for step in key.split("."):
            value = value.get(step, value) if isinstance(value, dict) else getattr(value, step)


@pytest.mark.parametrize("name", names())
def test_a_site_that_is_written_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    """As `box up` writes one, and one that had a section for each scheduler."""
    site = read_site(name)
    for document in (site.document, {"slurm": {}, "pbs": {"place": "free"}} | site.document):
        path = write(tmp_path / "site.yaml", msgspec.yaml.encode(document).decode())
        assert read_site(path) == site


def test_the_reference_is_the_codes() -> None:
    """``gpu-runner site reference >docs/sites.md`` after a change of the schema."""
    assert (Path(__file__).parents[3] / "docs/sites.md").read_text() == reference()


def test_a_file_extends_another_and_changes_what_differs(tmp_path: Path) -> None:
    path = write(tmp_path / "ours.yaml", OURS + "env: {NCCL_NET: IB}\nnode: {gpus: 8}\nruntimes: [enroot, apptainer]\n")
    ours, base = read_site(path), read_site("polaris")
    assert (ours.env["NCCL_NET"], ours.env["NCCL_SOCKET_IFNAME"]) == ("IB", base.env["NCCL_SOCKET_IFNAME"])
    assert (ours.node.gpus, ours.node.cores) == (8, base.node.cores)
    assert ours.runtimes == ("enroot", "apptainer")
    assert ours.ways == {"apptainer": base.ways["apptainer"]}


def test_no_site_excludes_interfaces_from_nccls_choice() -> None:
    """An exclusion ends NCCL's own preference for InfiniBand's interface: a BMC's came first (NCCL 2.25.1)."""
    chosen = {name: str(read_site(name).env.get("NCCL_SOCKET_IFNAME")) for name in names()}
    assert not [name for name, value in chosen.items() if value.startswith("^")]


def test_a_base_may_be_a_path_beside_the_file_and_what_it_has_proven_is_not_the_others(tmp_path: Path) -> None:
    base = "name: base\nextends: box\nproven: {native: by us}\nenv: {A: '1'}\n"
    assert read_site(write(tmp_path / "base.yaml", base)).proven == {"native": "by us"}
    ours = read_site(write(tmp_path / "ours.yaml", "name: ours\nextends: base.yaml\n"))
    assert (ours.env["A"], ours.proven) == ("1", {})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: ours\nextends: polarys\n", "ours.yaml:2: extends"),
        ("name: ours\nextends: polarys\n", "did you mean 'polaris'?"),
        ("name: ours\nextends: ours.yaml\n", "extends this file"),
        (OURS + "node:\n  gpu: 4\n", "ours.yaml:5: node.gpu"),
        (OURS + "node: {gpus: four}\n", "ours.yaml:4: node.gpus"),
        (OURS + "node: {cpus_per_gpu: 0}\n", "node.cpus_per_gpu"),
        (OURS + "ways: {aptainer: {}}\n", "did you mean 'apptainer'?"),
        (OURS + "ways:\n  sarus: {}\n", "ours.yaml:5: ways.sarus"),
        (OURS + "ways: {native: {environment: ./.venv}}\n", "neither a name nor absolute"),
        (OURS + "runtimes: [native, sarus]\n", "ours.yaml:4: runtimes"),
        (OURS + "runtimes: [native, apptainre]\n", "did you mean 'apptainer'?"),
        (OURS + "runtimes: [sarus]\n", "podman-hpc, enroot or pyxis"),
        (OURS + "ways: {apptainer: {setup: {modules: [x]}}}\n", "ways.apptainer.setup"),
        (OURS + "ways: {native: {setup: {module: [x]}}}\n", "did you mean 'modules'?"),
        (OURS + "needs: [money]\n", "needs.0"),
        (OURS + "slurm: {step: {wait: '5'}}\n", "slurm: {wait_s: N}"),
        (OURS + "slurm: {export: NONE}\n", "slurm.export"),
        (OURS + "env: null\n", "ours.yaml:4: env"),
        ("name: mine\nextends: base.yaml\n", "base.yaml:4: walltime_s"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, content: str, says: str) -> None:
    write(tmp_path / "base.yaml", OURS + "walltime_s: long\n")
    with pytest.raises(UsageError) as caught:
        read_site(write(tmp_path / "ours.yaml", content))
    assert says in str(caught.value)


def test_the_users_own_is_put_where_the_site_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "ours.yaml", OURS + "env: {HF_HOME: '{scratch}/{project}/{user}', JSON: '{\"a\": {}}'}\n")
    site, unknown = read_site(path), Personal(user="elvis")
    assert expand_placeholders(site, ELVIS).env["HF_HOME"] == "/scratch/e/hvd/elvis"
    assert expand_placeholders(site, ELVIS).env["JSON"] == '{"a": {}}'
    assert missing_values(site, unknown) == ("account", "project", "scratch")
    assert expand_placeholders(site, unknown).env["HF_HOME"] == "SCRATCH-NOT-SET/PROJECT-NOT-SET/elvis"
    wrong = read_site(write(tmp_path / "ours.yaml", OURS + "env: {HF_HOME: '{scrach}'}\n"))
    with pytest.raises(UsageError, match="did you mean 'scratch'"):
        expand_placeholders(wrong, ELVIS)


PROBE = ("--recipe", "probe", "--gpus", "8", "--dry-run")


@pytest.mark.parametrize(
    ("name", "missing", "says", "script"),
    [
        ("perlmutter", "account", "", ""),
        ("alpha", "account", "", ""),
        ("polaris", "account", "", ""),
        # The field of research is the user's own, and never guessed.
        ("neuron", "field", "`showappl` lists fields", '#SBATCH --comment="field=FIELD-NOT-SET;appl=pytorch"'),
    ],
)
def test_what_a_shipped_site_needs_of_the_user_is_named(
    name: str, missing: str, says: str, script: str, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    request = ["submit", "--site", name, *PROBE]
    said = call(*request, code=Exit.REFUSED)
    assert f"refused [{missing}-missing]" in said.err
    assert f"--{missing} NAME" in said.err
    assert says in said.err
    assert script in said.out
    run([*request, f"--{missing}", "m1234"])
    given = capfd.readouterr()
    assert f"{missing}-missing" not in given.err
    assert "m1234" in given.out


def test_a_recipes_application_has_the_sites_name(capfd: pytest.CaptureFixture[str]) -> None:
    for recipe, name in (("horovod-tensorflow", "tensorflow"), ("probe", "pytorch")):
        run(["submit", "--site", "neuron", "--recipe", recipe, "--gpus", "2", "--field", "bio", "--dry-run"])
        assert f'#SBATCH --comment="field=bio;appl={name}"' in capfd.readouterr().out


def test_values_that_the_sites_own_list_does_not_have_are_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "showappl", "echo 'field: nlp(language), chem'; echo '1) pytorch  2) jax'; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    request = ("submit", "--site", "neuron", "--runs", "/scratch/root/runs", "--gpus", "2", "--dry-run", "--field")
    tensorflow = ("--recipe", "horovod-tensorflow")
    for words, says in ((("nlp",), ""), (("npl",), "'npl'\n  fix (user): did you mean 'nlp'"),
                        (("nlp", *tensorflow), "does not list 'tensorflow'"),
                        (("npl", *tensorflow, "-S", "comment=field=nlp;appl=jax"), "")):  # fmt: skip
        said = call(*request, *words, code=Exit.REFUSED).err
        assert ("value-not-listed" in said, says in said) == (bool(says), True), said
    assert "does not list 'tensorflow'" in call("site", "check", "neuron").err


def test_a_job_with_a_comment_of_its_own_needs_no_field(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    comment = "field=bio;appl=tensorflow"
    own = f"name: ours\nextends: neuron\nslurm: {{directives: {{comment: '{comment}'}}}}\n"
    for words in (("neuron", "-S", f"comment={comment}"), (write(tmp_path / "ours.yaml", own),)):
        run(["submit", *PROBE, "--site", *words])
        said = capfd.readouterr()
        assert "field-missing" not in said.err
        assert f'#SBATCH --comment="{comment}"' in said.out


@pytest.mark.parametrize("field", ["bio;appl=x", "field=bio", 'b"io', "bio\n"])
def test_a_field_that_would_end_its_part_of_the_comment_is_refused(field: str, call: Call) -> None:
    said = call("submit", "--site", "neuron", *PROBE, "--field", field, code=Exit.USAGE).err
    assert "give the name alone, and a whole comment as -S 'comment=field=NAME;appl=NAME'" in said


def test_gpu_jobs_are_charged_to_the_account_for_gpus() -> None:
    for given in ("m1234", "m1234_g"):
        assert account(read_site("perlmutter"), Personal(account=given)) == "m1234_g"
    assert account(read_site("polaris"), Personal(account="hvd")) == "hvd"
    assert account(read_site("technion"), Personal()) is None
    none = Personal(account="none", scratch="/s")
    assert account(read_site("perlmutter"), none) is None
    assert "account" not in missing_values(read_site("perlmutter"), none)
    charged = msgspec.structs.replace(read_site("box"), env={"WHOM": "{account}"})
    assert missing_values(charged, none) == ("account",), "no directive, and yet its name is needed"


def test_flags_win_over_the_sites_entry_and_that_over_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "elvis")
    content = "account: everywhere\nscratch: /s\nsites:\n  polaris: {account: there}\n"
    config = read_config(Path(write(tmp_path / "config.yaml", content)))
    shared = msgspec.structs.replace(read_site("slurm"), scratch=Scratch(path="/scratch/{user}"))
    cases: tuple[tuple[UserConfig, Site, dict[str, Any], tuple[str, str]], ...] = (
        (config, read_site("polaris"), {}, ("there", "/s")),
        (config, read_site("alpha"), {}, ("everywhere", "/s")),
        (config, read_site("polaris"), {"account": "flag"}, ("flag", "/s")),
        (UserConfig(), shared, {}, ("", "/scratch/elvis")),
        (UserConfig(), shared, {"scratch": "/mine"}, ("", "/mine")),
        (UserConfig(), read_site("slurm"), {}, ("", "")),
    )
    for configured, site, options, wanted in cases:
        values = personal_values(configured, site, Request(gpus=1, **options))
        assert (values.account, values.scratch) == wanted


def test_a_configuration_is_as_strict_as_a_site(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'account'") as caught:
        read_config(Path(write(tmp_path / "config.yaml", "acount: x\n")))
    assert "config.yaml:1" in caught.value.where


def test_where_no_gpu_is_every_benchmark_is_a_small_demonstration() -> None:
    """Its own size is for GPUs: natively on processors, ResNet-50 with a batch of 256 takes 10 GB a rank."""
    without = read_site("local").without_gpus
    assert without is not None
    benchmarks = [name for name in recipes.names() if recipes.read_recipe(name).recipe.samples_option]
    assert "horovod-tensorflow" in benchmarks
    for options in (without.options, read_site("box").options):
        assert [name for name in benchmarks if options.get(name, {}).get("demonstration") is not True] == []
