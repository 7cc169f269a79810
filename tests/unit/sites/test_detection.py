"""A site file from what a cluster says: facts out of recorded answers, and a named comment for all that is unknown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.core.files import user_umask
from runner.core.text import clock_s
from runner.model.backends import RUNTIMES, runtime_programs
from runner.model.site import Site
from runner.preparation.site_check import differences
from runner.sites.detection import host, pbs, slurm
from runner.sites.detection.cluster import Detected, draft
from runner.sites.detection.facts import Answer, ask, ask_all
from runner.sites.loader import names, read_documents, read_site, unknowns
from tests.support.documents import result
from tests.support.shell_files import stand_in

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}
LOGIN = """\
host=login1
kernel=3.10.0-1160.el7.x86_64
cpu=x86_64
os=CentOS Linux 7 (Core)
libc=glibc 2.17
max_user_namespaces=0
scratch=/scratch/elvis/x
user=elvis
"""
NODE = """\
host=gpu07
kernel=5.14.0
cpu=x86_64
os=Rocky Linux 9.4
libc=glibc 2.34
max_user_namespaces=2061374
program=apptainer
driver=NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
gpu=NVIDIA A100-SXM4-40GB, 8.0, Disabled
gpu=NVIDIA A100-SXM4-40GB, 8.0, Disabled
fabric=InfiniBand
fabric=Ethernet
"""


def recorded(version: str) -> slurm.Slurm:
    """The box with that version of Slurm, as its clients answered on 2026-11-21."""
    texts = {name: (RECORDED / f"slurm-{version}/{name}.txt").read_text() for name in slurm.COMMANDS}
    answers = {name: Answer(name, text) for name, text in texts.items()}
    return slurm.read({**answers, "accounts": Answer("sacctmgr", problem="sacctmgr was not found", absent=True)})


def mixed(**texts: str) -> slurm.Slurm:
    """A cluster with nodes of several kinds, behind accounting, with Pyxis: formats of scontrol(1), sinfo(1)."""
    said = {
        "config": "ClusterName = our cluster\nSLURM_VERSION = 23.11.4\nMpiDefault = pmix\nTmpFS = /scratch/local\n"
        "AccountingStorageEnforce = associations,limits,qos\nSelectType = select/cons_tres\n"
        "SelectTypeParameters = CR_CORE_MEMORY\n",
        "partitions": "PartitionName=v100 AllowQos=ALL Default=NO MaxNodes=2 MaxTime=1-00:00:00 MinNodes=1 State=UP\n"
        "PartitionName=a100 Default=YES MaxNodes=UNLIMITED MaxTime=2-12:00:00 MinNodes=0 State=UP\n"
        "PartitionName=a100-debug Default=NO MaxNodes=1 MaxTime=00:30:00 MinNodes=0 State=UP\n"
        "PartitionName=old Default=NO MaxNodes=1 MaxTime=UNLIMITED MinNodes=0 State=DOWN\n",
        "nodes": "".join(
            f"{name}|{partition}|{state}|{shape}|{features}\n"
            for name, partition, state, shape, features in (
                ("g1", "a100", "idle", "48|2|24|2|1031000|gpu:a100:8(S:0-1)", "ib,hbm40g"),
                ("g1", "a100-debug", "idle", "48|2|24|2|1031000|gpu:a100:8(S:0-1)", "ib,hbm40g"),
                ("g2", "a100", "drained*", "48|2|24|2|1030000|gpu:a100:8(S:0-1)", "hbm40g,new"),
                ("m1", "mig", "idle", "48|2|24|2|1030000|gpu:a100:4,gpu:a100_1g.5gb:28", "(null)"),
                ("v1", "v100", "mixed", "40|2|20|1|380000|gpu:v100:4", "(null)"),
                ("c1", "cpu", "idle", "64|2|32|1|250000|(null)", "(null)"),
                ("broken", "cpu", "idle", "64", ""),
            )
        ),
        "srun": "      --container             Path to OCI container bundle\n"
        "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
        "mpi": "srun: MPI types are...\nsrun: none\nsrun: pmix_v3\nsrun: openmpi\n",
        "accounts": "other|p_x|p_x\nour cluster||p_hvd\nour cluster||p_other\nour cluster||p_hvd\n",
    } | texts
    return slurm.read({name: Answer(name, text) for name, text in said.items()})


def detected(cluster: slurm.Slurm | None, *, node: str = "", login: str = LOGIN, modules: str = "") -> Detected:
    return Detected(
        scheduler_name="slurm" if cluster else "pbs",
        cluster=cluster or of_pbs(),
        login=host.read(Answer("", login)),
        node=host.read(Answer("", node)),
        modules=host.modules(Answer("", modules)),
        day="2026-11-21",
    )


def of_pbs() -> pbs.Pbs:
    """Polaris, after ALCF's public guide."""
    return pbs.read({name: Answer(name, (RECORDED / f"pbs/{name}.txt").read_text()) for name in pbs.COMMANDS})


def drafted(tmp_path: Path, told: Detected, name: str = "ours", partition: str | None = None) -> Path:
    path = tmp_path / "ours.yaml"
    path.write_text(draft(told, name, partition))
    return path


def completed_file(path: Path, **more: str) -> Site:
    """The file with what it leaves open deleted, and some of it given."""
    lines = [line for line in path.read_text().splitlines() if not re.match(r"\s*#", line)]
    path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in more.items())]) + "\n")
    assert unknowns(read_documents(str(path))) == ()
    return read_site(str(path))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_slurm_is_understood(version: str, tmp_path: Path) -> None:
    cluster = recorded(version)
    assert cluster.version == VERSIONS[version]
    assert [(each.name, each.is_default, each.limits) for each in cluster.queues] == [("batch", True, {})]
    assert cluster.mpi[-1].startswith("pmix_v") == (version != "26.05")
    site = completed_file(drafted(tmp_path, detected(cluster, node=NODE), "box"))
    node = site.node
    assert (node.gpus, node.gpu_type, node.cores, node.threads_per_core) == (8, "a100", 128, 2)
    assert (node.memory_mb, node.count) == (1000000, 2)
    assert site.mpi.pmi == (("pmi2",) if version == "26.05" else ("pmix", "pmi2"))
    assert tuple(site.scheduler_settings[name] for name in ("gpus", "memory", "mpi")) == ("per-node", "none", "none")
    assert (site.local_scratch, site.needs) == ("/tmp", ())
    assert (site.transport, "NCCL_NET" in site.env) == ("verbs", False)
    assert site.sources["node"].startswith("sinfo")


def test_the_kind_of_node_with_the_most_gpus_is_planned_for(tmp_path: Path) -> None:
    path = drafted(tmp_path, detected(mixed()))
    text = path.read_text()
    assert "1 with 4 x v100 (`site detect --partition`: v100)" in " ".join(text.replace("#", "").split())
    assert "slurm.directives.constraint can ask for hbm40g: all" in text
    site = completed_file(path)
    node = site.node
    assert (node.gpus, node.gpu_type, node.cores, node.threads_per_core, node.count) == (8, "a100", 48, 1, 2)
    assert node.memory_mb == 1030000, "the least"
    assert list(site.queues) == ["a100", "a100-debug"], "those of these nodes, the default first"
    assert (site.queues["a100"].max_walltime_s, site.queues["a100-debug"].max_nodes) == (216000, 1)
    assert site.runtimes == ("pyxis", "native")
    assert (site.scheduler_settings["memory"], site.mpi.pmi, site.needs) == ("per-node", ("pmix",), ("account",))
    assert "p_hvd, p_other" in site.sources["needs"]
    assert site.scratch.path == "/scratch/{user}/x"


@pytest.mark.parametrize(("features", "is_fake"), [(("fake-gpus,ib", "fake-gpus"), True), (("fake-gpus", ""), False)])
def test_fake_gpus_are_detected_by_the_feature_that_all_these_nodes_have(
    features: tuple[str, ...], is_fake: bool, tmp_path: Path
) -> None:
    """As the box's nodes have it: jobs compute on CPUs there, and say so. A node that was asked adds nothing."""
    nodes = "".join(f"g|p|idle|48|2|24|2|1031000|gpu:a100:8|{each or '(null)'}\n" for each in features)
    path = drafted(tmp_path, detected(mixed(nodes=nodes), node=NODE.replace("driver=", "other=")))
    assert is_fake is not ("device" in {entry.key for entry in unknowns(read_documents(str(path))) if entry.needed})
    assert not is_fake or "constraint can ask for" not in path.read_text()
    site = completed_file(path)
    assert site.device == ("cpu" if is_fake else "cuda"), "a cluster whose driver is gone has a fault"
    assert (site.demonstration == "CPU, fake GPUs: demonstration, no performance claim") is is_fake
    source = "sinfo --Node, 2026-11-21: these nodes have the feature fake-gpus"
    assert (site.sources.get("device") == source) is is_fake


def test_a_partition_can_be_named(tmp_path: Path) -> None:
    site = completed_file(drafted(tmp_path, detected(mixed()), partition="v100"))
    assert (site.node.gpus, site.node.gpu_type, list(site.queues)) == (4, "v100", ["v100"])
    mig = drafted(tmp_path, detected(mixed()), partition="mig")
    assert "28 x a100_1g.5gb" in mig.read_text()
    assert completed_file(mig).node.gpu_type == "a100"


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", (("", 4),)),
        ("gpu:a100:8(S:0-1),shard:64(S:0-1)", (("a100", 8),)),
        ("nvme:1,gpu:tesla:2,gpu:kepler:2", (("kepler", 2), ("tesla", 2))),
        ("gpu:a100_3g.20gb:2(S:0),gpu:a100_3g.20gb:2(S:1)", (("a100_3g.20gb", 4),)),
        ("(null)", ()),
        ("mygpu:3", ()),
    ],
)
def test_gpus_are_read_out_of_any_gres(gres: str, gpus: tuple[tuple[str, int], ...]) -> None:
    (node,) = mixed(nodes=f"n1|p|idle|8|1|8|1|1000|{gres}|(null)\n").nodes
    assert node.gpus == gpus


@pytest.mark.parametrize(
    ("clock", "s"), [("1-00:00:00", 86400), ("48:00:00", 172800), ("30:00", 1800), ("UNLIMITED", None), ("NONE", None)]
)
def test_time_limits_are_seconds(clock: str, s: int | None) -> None:
    assert clock_s(clock) == s


def test_pbs_is_understood(tmp_path: Path) -> None:
    site = completed_file(drafted(tmp_path, detected(None), "polaris-2"))
    assert site.runtimes == ("native",), "what needs no container runtime"
    assert (site.scheduler, site.scheduler_settings["chunk"]) == ("pbs", {"system": "polaris"})
    assert (site.node.gpus, site.node.cpus, site.node.memory_mb, site.node.count) == (4, 64, 515305, 2)
    assert (site.queues["prod"].min_nodes, site.queues["prod"].max_walltime_s) == (10, 86400)
    assert set(site.queues) == {"debug", "prod"}, "not those that are closed, or that queues alone route to"
    assert site.env["PYTHONNOUSERSITE"] == "1"


def test_what_is_unknown_is_left_open_by_name(tmp_path: Path) -> None:
    path = drafted(tmp_path, detected(mixed(srun="", nodes="", config="", mpi="")))
    left = {entry.key: entry for entry in unknowns(read_documents(str(path)))}
    assert {"node.gpus", "node.cores", "queues", "needs", "mpi.pmi", "hardware.driver"} <= set(left)
    line = path.read_text().splitlines()[int(left["hardware.driver"].where.rpartition(":")[2]) - 1]
    assert line.strip().startswith("# DEFAULT hardware.driver: `srun --gpus=1 nvidia-smi`")
    needed = {key for key, entry in left.items() if entry.needed}
    assert needed == {"node.gpus", "node.cores", "node.memory_mb"}, "no job can do without"
    assert left["transport"].how.endswith("on a node)"), "further lines of a remark are read, too"
    assert "# no container runtime on PATH here; a GPU node was not asked; put in front what" in path.read_text()


def test_an_open_key_is_closed_by_giving_it_here_or_in_a_file_that_extends(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("name: base\nextends: slurm\n# UNKNOWN node.count: how many\n# UNKNOWN home.quota_gb: quota -s\n")
    ours = tmp_path / "ours.yaml"
    ours.write_text("name: ours\nextends: base.yaml\nnode: {count: 3}\n")
    assert [entry.key for entry in unknowns(read_documents(str(ours)))] == ["home.quota_gb"]
    base.write_text(base.read_text() + "home: {quota_gb: null}\n")
    assert unknowns(read_documents(str(ours))) == ()
    assert [entry.key for entry in unknowns(read_documents(str(base)))] == ["node.count"]


def test_a_gpu_node_shows_more_than_a_login_node(tmp_path: Path) -> None:
    site = completed_file(drafted(tmp_path, detected(mixed(), node=NODE, modules="/opt/modules:\nhorovod/0.28\n")))
    assert site.runtimes == ("pyxis", "apptainer", "native")
    hardware = site.hardware
    assert (hardware.driver, hardware.compute_capability, hardware.cpu) == ("535.104.05", "8.0", "x86_64")
    assert site.node.gpu_model == "NVIDIA A100-SXM4-40GB"
    text = draft(detected(mixed(), node=NODE), "x")
    assert "CentOS Linux 7 (Core), glibc 2.17" in text
    assert "user namespaces OFF" in text


def test_a_runtime_that_a_module_brings_is_loaded(tmp_path: Path) -> None:
    modules = "/opt/modules/all:\napptainer/1.1.9\napptainer/1.3.0(default)\nPyTorch/2.1.2-foss-2023a\ngcc/10.2.0\n"
    path = drafted(tmp_path, detected(mixed(srun=""), modules=modules))
    assert "PyTorch/2.1.2-foss-2023a" in path.read_text()
    site = completed_file(path)
    assert site.runtimes == ("apptainer", "native")
    assert site.ways["apptainer"].load == (("module", "load", "apptainer/1.3.0"),)


@pytest.mark.parametrize("name", ['a "b" # c: {d}', "é\\n", "true", "1.0", "- x", "#"])
def test_whatever_a_cluster_says_the_file_is_sound_yaml(tmp_path: Path, name: str) -> None:
    cluster = replace(mixed(), config={**mixed().config, "TmpFS": f"/{name}"}, version=name)
    site = completed_file(drafted(tmp_path, detected(cluster, login=LOGIN.replace("elvis/x", name))))
    assert site.local_scratch == f"/{name}"
    assert site.description == f"ours: Slurm {name}".strip()


SOUND: dict[str, object] = {
    "node": {"gpus": 8, "gpu_type": "a100", "cores": 48, "memory_mb": 1000000, "count": 2},
    "queues": {"a100": {"max_walltime_s": 216000}},
    "queue": "a100",
}


def site_with(changes: dict[str, object]) -> Site:
    shipped = msgspec.to_builtins(read_site("technion"))
    node = shipped["node"] | {"threads_per_core": 1} | SOUND["node"]
    return msgspec.convert(shipped | SOUND | {"node": node} | changes, Site)


BARE = NODE.replace("max_user_namespaces=2061374", "max_user_namespaces=0")
NO_DRIVER = "".join(line for line in NODE.splitlines(keepends=True) if not line.startswith("driver"))
DOWN = "g1|a100|down*|48|2|24|2|1031000|gpu:a100:8(S:0-1)|ib,hbm40g\n"


def node(**changes: int) -> dict[str, object]:
    return {"node": {"gpus": 8, "cores": 48, "memory_mb": 1} | changes}


def of_queue(**changes: int) -> dict[str, object]:
    own = {"gpus": 4, "cores": 40, "memory_mb": 1} | changes
    return {"queues": {"a100": {"max_walltime_s": 216000}, "v100": {"node": own}}}


@pytest.mark.parametrize(
    ("changes", "answers", "wanted", "says"),
    [
        ({}, {}, {}, ""),
        ({"queues": {"a1000": {}}, "queue": None}, {}, {"queue-gone": "refuse"}, "did you mean 'a100'?"),
        ({"queues": {"old": {}}, "queue": None}, {}, {"queue-gone": "refuse"}, "no queue 'old'"),
        ({"queues": {"a100": {"max_walltime_s": 10**6}}}, {}, {"queue-limit-differs": "warn"}, "216000"),
        ({"queues": {"a100": {}}}, {}, {"queue-limit-differs": "warn"}, "no limit"),
        ({"queues": {"v100": {}}, "queue": "v100"}, {}, {"gpu-type-differs": "refuse"}, "v100"),
        (node(gpus=4), {}, {"gpus-differ": "refuse"}, "a node has 8 GPUs"),
        (node(cores=96), {}, {"cpus-differ": "refuse"}, "48 CPUs to give"),
        (node(cores=40), {}, {"cpus-differ": "warn"}, "40 cores"),
        (node(memory_mb=2000000), {}, {"memory-differs": "refuse"}, "1030000 MiB"),
        (node(count=9), {}, {"fewer-nodes": "warn"}, "9"),
        # A queue's own nodes; those of the site are then the other queues'.
        (
            of_queue(gpus=8),
            {},
            {"gpus-differ": "refuse"},
            "a node has 4 GPUs, the file says 8 queues.v100.node.gpus: 4",
        ),
        (of_queue(cores=99), {}, {"cpus-differ": "refuse"}, "queues.v100.node.cores"),
        ({"runtimes": ["enroot"]}, {}, {"runtime-missing": "refuse"}, "not on gpu07"),
        ({"runtimes": ["pyxis", "enroot"]}, {}, {"runtime-missing": "warn"}, "not on gpu07"),
        ({"mpi": {"pmi": ["pmi2"]}}, {}, {"pmi-missing": "refuse"}, "pmix_v3"),
        ({"hardware": {"driver": "550.1"}}, {}, {"driver-older": "refuse"}, "535.104.05"),
        ({"hardware": {"cpu": "aarch64"}}, {}, {"cpu-differs": "refuse"}, "x86_64"),
        ({"scheduler": "pbs"}, {}, {"scheduler-differs": "refuse"}, "Slurm 23.11.4"),
        # What only an administrator can fix says so.
        (
            {},
            {"srun": "", "node": BARE},
            {"runtime-missing": "refuse", "user-namespaces-off": "refuse"},
            "administrator",
        ),
        ({}, {"node": NO_DRIVER}, {"driver-missing": "refuse"}, ""),
        ({}, {"nodes": DOWN}, {"nodes-down": "warn"}, "administrator"),
        # A login node proves nothing about the nodes.
        ({"runtimes": ["apptainer"]}, {"node": ""}, {"runtime-not-here": "warn"}, ""),
    ],
)
def test_what_no_longer_holds_is_reported(
    changes: dict[str, object], answers: dict[str, str], wanted: dict[str, str], says: str
) -> None:
    clients = {name: text for name, text in answers.items() if name != "node"}
    seen = detected(mixed(**clients), node=answers.get("node", NODE))
    findings = {each.code: each for each in differences(site_with(changes), seen)}
    severities = {code: each.severity for code, each in findings.items()}
    assert wanted.items() <= severities.items() if changes or clients else severities == wanted
    for code in wanted:
        assert says in f"{findings[code].what} {findings[code].fix} {findings[code].who}"


def test_pbs_is_compared_too() -> None:
    told = differences(read_site("polaris"), detected(None))
    gone = [finding.what for finding in told if finding.code == "queue-gone"]
    assert gone == [f"there is no queue {name!r} (any more)" for name in ("debug-scaling", "preemptable", "capacity")]
    assert {finding.severity for finding in told if finding.code == "cpus-differ"} == {"warn"}


@pytest.mark.parametrize("name", names())
def test_every_shipped_site_is_sound_in_each_of_its_ways(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["site", "check", name, "--offline"]) == Exit.GOOD
    said = capfd.readouterr()
    assert said.err == ""
    assert ", ".join(read_site(name).runtimes) in said.out


def test_this_host_is_described() -> None:
    told = host.read(ask_all({"here": host.here()})["here"])
    assert told is not None
    assert (told.kernel, told.cpu, told.name) == (os.uname().release, os.uname().machine, os.uname().nodename)
    assert told.libc.startswith("glibc 2.")


def test_a_pbs_that_answers_becomes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The verbs, with clients that say what PBS's would."""
    clients = tmp_path / "clients"
    clients.mkdir()
    which = '$([ "$1" = -B ] && echo server || echo queues)'
    stand_in(clients, "qstat", f'exec cat "{RECORDED}/pbs/{which}.txt"')
    stand_in(clients, "pbsnodes", f'exec cat "{RECORDED}/pbs/nodes.txt"')
    monkeypatch.setenv("PATH", f"{clients}:/usr/bin:/bin")
    path = tmp_path / "ours.yaml"
    assert run(["site", "detect", "-o", str(path), "--name", "ours"]) == Exit.GOOD
    assert path.stat().st_mode & 0o777 == 0o666 & ~user_umask()  # a file for all users is as any other
    assert run(["site", "detect", "--on-node"]) == Exit.REFUSED
    assert run(["site", "detect", "--name", "a b"]) == Exit.USAGE
    capfd.readouterr()
    assert run(["site", "detect", "--name", "ours", "--json"]) == Exit.GOOD
    facts = result(capfd.readouterr().out)
    assert (facts["file"], facts["text"], facts["scheduler"]) == (None, path.read_text(), "PBS 2022.1.1.20220926110806")
    assert "pbs.resources" in [entry["key"] for entry in facts["unknown"]]
    assert run(["site", "check", str(path), "--json"]) == Exit.GOOD
    report = result(capfd.readouterr().out)
    assert "pbs.resources" in [entry["key"] for entry in report["defaulted"]]
    path.write_text(path.read_text() + "# UNKNOWN home.quota_gb: quota -s\n")
    assert run(["site", "check", str(path), "--json"]) == Exit.USAGE
    assert [entry["key"] for entry in result(capfd.readouterr().out)["left_open"]] == ["home.quota_gb"]
    completed_file(path)
    assert run(["site", "check", str(path)]) == Exit.GOOD
    assert "compared with PBS 2022.1.1" in capfd.readouterr().out
    path.write_text(path.read_text() + "# DEFAULT home.quota_gb: quota -s\n")
    assert run(["site", "check", str(path)]) == Exit.GOOD, "a warning"
    assert f"warning [home.quota_gb] {path}:" in capfd.readouterr().err
    path.write_text(path.read_text().replace("prod:", "production:"))
    assert run(["site", "check", str(path)]) == Exit.REFUSED
    assert run(["site", "check", str(path), "--offline"]) == Exit.GOOD


def test_a_client_that_hangs_costs_its_time_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (("sinfo", "exec sleep 600"), ("scontrol", "echo A=1; exit 3"), ("srun", "env")):
        stand_in(tmp_path, name, body)
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    told = ask_all({name: (name,) for name in ("sinfo", "scontrol", "srun", "no-such-program")}, tmp_path, 1.0)
    assert "within 1 s" in told["sinfo"].problem
    assert told["scontrol"].problem.startswith("exit 3")
    assert told["no-such-program"].absent
    assert "SLURM_CLUSTERS" not in told["srun"].out


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_is_known_by_its_program_on_a_host_and_by_its_plugins_option_of_srun(runtime: str) -> None:
    if runtime in runtime_programs():
        seen = host.read(Answer("host.sh", f"host=n1\nprogram={runtime_programs()[runtime]}\n"))
        assert seen is not None
        assert seen.runtimes == (runtime,)
    if RUNTIMES[runtime].srun_option:
        with_option = mixed(srun=f"  --{RUNTIMES[runtime].srun_option}=X  what it does\n")
        assert runtime in detected(with_option).runtimes


LIMITED = """\
PartitionName=cpu Default=YES AllowAccounts=ALL AllowGroups=ALL AllowQos=ALL MaxTime=1-00:00:00 State=UP
PartitionName=short Default=NO AllowAccounts=ALL AllowGroups=ALL AllowQos=ALL MaxTime=01:00:00 State=UP
PartitionName=lab Default=NO AllowAccounts=lab42 AllowGroups=ALL AllowQos=ALL MaxTime=3-00:00:00 State=UP
PartitionName=course Default=NO AllowAccounts=course7 AllowGroups=ALL AllowQos=ALL MaxTime=UNLIMITED State=UP
PartitionName=wheel Default=NO AllowAccounts=ALL AllowGroups=wheel AllowQos=ALL MaxTime=UNLIMITED State=UP
PartitionName=premium Default=NO AllowAccounts=ALL AllowGroups=ALL AllowQos=premium MaxTime=UNLIMITED State=UP
PartitionName=busy Default=NO DenyQos=scavenger MaxTime=UNLIMITED State=UP
PartitionName=down Default=NO AllowAccounts=lab42 State=DOWN
"""
# As sbatch of Slurm 22.05.8 said to a user whose default account is lab42.
TRIALS = {
    "lab": "", "course": "Invalid account or account/partition combination specified",
    "wheel": "User's group not permitted to use this partition", "premium": "Invalid qos specification",
    "busy": "Requested node configuration is not available",
}  # fmt: skip


def accounts(tmp_path: Path, default: str) -> tuple[slurm.Slurm, list[str], Site]:
    """A cluster of partitions that are not for everybody, those of which Slurm was asked, and its file."""
    nodes = [f"big|{each}|idle|48|2|24|2|1031000|gpu:a100:8|(null)" for each in ("wheel", "premium")]
    nodes += [
        f"g|{each}|idle|48|2|24|2|1031000|gpu:a100:4|(null)" for each in ("short", "lab", "course", "busy", "down")
    ]
    rows = "".join(f"Our Cluster|{default}|{each}\n" for each in ("course7", "lab42")) + "other|x|y\n"
    cluster = mixed(
        partitions=LIMITED, nodes="\n".join([*nodes, "c|cpu|idle|64|2|32|1|250000|(null)|x"]), accounts=rows
    )
    asked: list[str] = []

    def ask(commands: Mapping[str, tuple[str, ...]]) -> dict[str, Answer]:
        asked.extend(commands)
        assert all(words[:3] == ("sbatch", "--test-only", f"--partition={name}") for name, words in commands.items())
        whys = {name: f"exit 1: allocation failure: {TRIALS[name]}" if TRIALS[name] else "" for name in commands}
        return {name: Answer("sbatch", problem=why) for name, why in whys.items()}

    cluster = slurm.trials(cluster, ask)
    return cluster, asked, completed_file(drafted(tmp_path, detected(cluster)))


def test_partitions_that_take_no_job_of_this_user_are_not_offered(tmp_path: Path) -> None:
    """Slurm is asked only of those that have GPUs and are not for all; a refusal for another reason says nothing."""
    cluster, asked, site = accounts(tmp_path, "lab42")
    assert asked == [*TRIALS]
    assert [*site.queues] == ["short", "lab", "busy"]
    assert (site.node.gpus, site.node.count) == (4, 1), "not those of nodes that only others may use"
    assert [each.name for each in cluster.gpu_queues(["lab"])] == ["short", "lab", "busy"]
    assert "# course takes no job of yours as it is: Invalid account" in draft(detected(cluster), "ours")
    of_others = msgspec.structs.replace(site, queues=dict.fromkeys(("course", "gone"), site.queues["short"]))
    codes = [(each.code, each.severity) for each in differences(of_others, detected(cluster))]
    assert {("queue-closed", "warn"), ("queue-gone", "refuse")} <= {*codes}


def test_with_a_default_account_none_is_needed_and_else_yours_are_listed(tmp_path: Path) -> None:
    cluster, _asked, site = accounts(tmp_path, "lab42")
    assert (cluster.account, cluster.accounts, site.needs, site.hints) == ("lab42", ("course7", "lab42"), (), {})
    (tmp_path / "none").mkdir()
    cluster, asked, site = accounts(tmp_path / "none", "")
    assert (cluster.account, asked, site.needs) == ("", [], ("account",)), "each trial would be refused for that"
    assert site.hints == {"account": "sacctmgr shows yours: course7, lab42"}


def test_a_task_on_a_node_gets_no_path_of_this_ones_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "srun", "echo $PATH")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    answers = [ask(("srun",), None, 10, on_node=elsewhere).out.strip() for elsewhere in (False, True)]
    assert answers == [f"{tmp_path}:/usr/bin", "/usr/bin"]
