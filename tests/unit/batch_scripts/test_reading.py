"""What is read in a batch script, where the 60 public ones do not have it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from runner.batch_scripts.directives import header, shape
from runner.batch_scripts.faults import faults, output_faults
from runner.batch_scripts.reading import BatchScript, read
from runner.batch_scripts.translation import translation

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"


def script(line: str, head: str = HEAD) -> BatchScript:
    return read(f"{head}{line}\n", {"HOME": "/home/me"})


def test_directives_are_split_as_sbatch_splits_them() -> None:
    lines = ("#!/bin/sh", "", "# a comment", "#SBATCH -N2 -J 'a # b' # --mem=1", "#SBATCH --exclusive --time 5 # x")
    read_header = header("\n".join((*lines, " true", "#SBATCH -n 3")))
    assert dict(read_header.options) == {"nodes": "2", "job-name": "a # b", "exclusive": "", "time": "5"}
    assert [(each.name, each.value, each.line) for each in read_header.late] == [("ntasks", "3", 7)]
    assert header("#SBATCH --comment='open\n").unread == ((1, "#SBATCH --comment='open"),)


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ("-o logs/%A_%a.out", "logs"), ("--output='my logs/x' -e x.err", "my logs"), ("-o there/x -e there/%j/x", ""),
        ("-o x.out", ""), ("-D there -o logs/x", "there/logs"), ("-o /dev/null", ""), ("-e /none/x", "/none"),
    ],
)  # fmt: skip
def test_a_directory_of_the_output_that_is_not_there(lines: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    found = [each.fix for each in output_faults(header(f"#!/bin/sh\n#SBATCH {lines}\n"), tmp_path)]
    assert found == ([f"mkdir -p {shlex.quote(str(tmp_path / missing))}"] if missing else [])


@pytest.mark.parametrize(
    ("options", "laid_out"),
    [
        ({"nodes": "2", "gres": "gpu:a100:4(S:0-1)"}, (2, 1, 4)),
        ({"nodes": "2-4", "gres": "gpu:4"}, (None, None, 4)),
        ({"nodes": "2", "ntasks-per-gpu": "1", "gres": "gpu:4"}, (None, None, 4)),
        ({"nodes": "2", "gres": "gpu:4", "hetjob": "", "ntasks": "2"}, (None, None, None)),
        ({"ntasks": "8", "ntasks-per-node": "4", "gpus-per-task": "1"}, (2, 4, 4)),
        ({"nodes": "2", "gpus": "8"}, (2, 1, 4)),
        ({"ntasks": "8", "gres": "lustre:1,gpu:2"}, (None, None, 2)),
    ],
)
def test_a_jobs_shape(options: dict[str, str], laid_out: tuple[int | None, ...]) -> None:
    of = shape(options)
    assert (of.nodes, of.tasks_per_node, of.gpus_per_node) == laid_out


def test_what_only_the_job_knows_is_filled_in_by_a_shell_there() -> None:
    ours = translation(script("srun python 'my train.py' --id $SLURM_JOB_ID --at '$x' --home $HOME"))
    text = "python 'my train.py' --id $SLURM_JOB_ID --at '$x' --home /home/me"
    assert ours.values["arguments"] == ("bash", "-c", text)


def test_the_scripts_own_arguments_are_those_that_it_is_called_with() -> None:
    text = f'{HEAD}srun python t.py --lr $1 "$@"\n'
    assert translation(read(text, {}, ("0.1", "a b"))).values["arguments"][2:] == ("--lr", "0.1", "0.1", "a b")
    assert translation(read(text, {})).values["arguments"][2:] == ("--lr",)


def test_modules_and_mounts_are_taken_over() -> None:
    ours = translation(script("module purge\nmodule load a/1 b\nml c\nsrun python t.py"))
    assert (ours.values["modules"], ours.values["runtime"]) == (("a/1", "b", "c"), "native")
    assert [what for _, what, _ in ours.dropped] == ["module purge"]
    ours = translation(script("module load a\nsrun --container-image=i --container-mounts=/d,/x:/y:ro python t.py"))
    assert [(each.source, each.target, each.read_only) for each in ours.values["mounts"]] == [
        ("/d", "/d", False), ("/x", "/y", True)
    ]  # fmt: skip
    assert [what for _, what, _ in ours.dropped] == ["module load a"]
    assert "runtime" not in ours.values


def test_what_is_left_out_is_listed_with_its_reason() -> None:
    line = "export MASTER_ADDR=$(hostname) LEVEL='a b'\nrsync -a /data /tmp\nconda activate x\nsrun -l python t.py"
    ours = translation(script(line, HEAD.replace("--nodes", "--output=o --qos=q --nodes")))
    assert {what for _, what, _ in ours.dropped} == {
        "--output", "srun --label", "MASTER_ADDR", "rsync -a /data /tmp", "conda activate x"
    }  # fmt: skip
    assert ours.values["env"] == (("LEVEL", "a b"),)
    assert ours.values["scheduler_options"] == (("qos", "q"),)


@pytest.mark.parametrize(
    "line",
    [
        "srun python a.py\nsrun python b.py",
        "if true; then srun python a.py; fi",
        "for i in 1 2; do srun python a.py; done",
        "srun $PROGRAM",
        "echo nothing",
        "srun --ntasks-per-node=8 python a.py",
    ],
)
def test_a_script_without_one_plain_launch_line_has_no_command(line: str) -> None:
    ours = translation(script(line))
    assert ours.refused
    assert not ours.values


ONE_NODE, RANGE = (HEAD.replace("nodes=2", f"nodes={nodes}") for nodes in ("1", "2-4"))


@pytest.mark.parametrize(
    ("line", "head", "reason"),
    [
        ("srun --ntasks-per-node=$(foo) python a.py", HEAD, "only a run tells --ntasks-per-node=$(foo)"),
        ("srun -N $X -n $Y python a.py", HEAD, "only a run tells --nodes=$X"),
        ("srun --gres=gpu:$X python a.py", HEAD, "only a run tells --gres=gpu:$X"),
        ("srun $OPTS python a.py", HEAD, "only a run tells $OPTS"),
        ('N=4; [ -n "$X" ] && N=2\nsrun --ntasks-per-node=$N python a.py', HEAD, "only a run tells"),
        ("N=4; x ||\nN=2; srun --ntasks-per-node=$N python a.py", HEAD, "only a run tells"),
        ("srun python a.py", RANGE, "only a run tells --nodes=2-4"),
        ("srun python a.py : python b.py", HEAD, "a heterogeneous job"),
        ("srun --het-group=0 python a.py", HEAD, "a heterogeneous job"),
        ("srun python a.py", f"{HEAD}#SBATCH hetjob\n#SBATCH --nodes=1\n", "a heterogeneous job"),
        ("torchrun --nproc-per-node=cpu a.py", ONE_NODE, "a number that only a run tells: cpu"),
        ("deepspeed --include localhost:0,1 a.py", ONE_NODE, "--include chooses"),
        ("deepspeed --num_gpus 4 a.py", HEAD, "list of hosts"),
        ("horovodrun -np 8 -H a:4,b:4 python a.py", HEAD, "-H chooses"),
        ("horovodrun -np 8 python a.py", HEAD, "list of hosts"),
        ("mpirun -N 1 python a.py", HEAD, "-N chooses"),
        ("mpirun --mca btl tcp --map-by ppr:1:node python a.py", HEAD, "--map-by chooses"),
        ("mpirun -np 8 -npernode 4 python a.py", HEAD, "-npernode chooses"),
        ("mpirun -np 1 python a.py : -np 7 python b.py", HEAD, ": chooses"),
        ("mpirun -np 2 python a.py", HEAD, "fills a node before the next"),
        ("mpirun -np 8 ./a.out", HEAD, "no Python"),
        ("srun python 'a.py", HEAD, "is not closed"),
    ],
)
def test_where_a_placement_is_not_certain_there_is_no_command_and_no_fault_of_counts(
    line: str, head: str, reason: str
) -> None:
    read_script = script(line, head)
    ours = translation(read_script)
    assert reason in ours.refused
    assert not ours.values
    assert {each.code for each in faults(read_script)} <= {"unclosed-quote", "counts"} - (
        {"counts"} if read_script.launches[0].starter is None else set()
    )


def test_a_shell_that_a_task_runs_has_what_the_script_exports() -> None:
    """``-n`` within ``$(...)`` is no option of export."""
    lines = (
        "export MASTER_ADDR=$(scontrol show hostnames $X | head -n 1) SRUN_CPUS_PER_TASK=8 N=8",
        "srun bash -c 'torchrun --nnodes 2 --nproc_per_node $N --node_rank ${SLURM_PROCID:-0} "
        "--master_addr ${MASTER_ADDR:-::1} t.py'",
    )
    one_each = HEAD.replace("per-node=4 ", "per-node=1 ")
    assert [each.code for each in faults(script("\n".join(lines), one_each))] == ["counts"]


def test_mpirun_on_several_nodes_is_left_out_as_submit_wants_it() -> None:
    ours = translation(script("mpirun -np 8 -x A --bind-to none python a.py -n 3"))
    assert ours.values["arguments"] == ("python", "a.py", "-n", "3")
    assert (3, "mpirun -np 8 -x A --bind-to none", "a run starts a rank for each GPU itself") in ours.dropped


@pytest.mark.parametrize("line", ["export SLURM_NTASKS=2 SLURM_NNODES=1\nsrun python a.py", "srun -N1 -n2 python a.py"])
def test_variables_of_the_script_count_for_srun_as_its_options(line: str) -> None:
    ours = translation(script(line))
    assert (ours.values["nodes"], ours.values["gpus"]) == (1, 2)
    assert "env" not in ours.values


def test_a_job_name_that_a_run_cannot_have_is_left_out() -> None:
    ours = translation(script("srun python a.py", f"{HEAD}#SBATCH --job-name='a b'\n"))
    assert "job_name" not in ours.values
    assert [(line, what) for line, what, _ in ours.dropped] == [(3, "--job-name=a b")]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("echo a\necho 'b\necho c", 4),
        ('x="$(a', 3),
        ("echo \"it's\" 'a\nb' $'it\\'s' ${x%'a'} # it's", 0),
        ("echo $'it\\'s'", 0),
        ('echo "${x:-it\'s}"', 0),
        ("cat <<E\nit's\nE", 0),
        ("case x in a) b;; (c) d;; esac", 0),
    ],
)
def test_the_line_of_an_open_quote_is_named(line: str, number: int) -> None:
    assert [each.line for each in faults(script(line)) if each.code == "unclosed-quote"] == [number] * bool(number)


def test_of_many_lines_the_first_are_named() -> None:
    assert "lines 3, 4, 5, 6, 7, 8, 9, 10 and 92 more" in translation(script("srun python a.py\n" * 100)).refused


@pytest.mark.parametrize(
    "text", ["", "\0", "#!/bin/bash\n#SBATCH --nodes=2\n\"'`$(", "a=(" * 400, "$((" * 50, "\r\n" * 5]
)
def test_any_text_is_read(text: str) -> None:
    read_script = read(text, {})
    faults(read_script)
    assert translation(read_script).refused


def test_four_times_the_lines_take_no_more_than_ten_times_as_long() -> None:
    def taken_s(lines: int) -> float:
        text = HEAD + 'A="$(hostname) $B"\n' * lines + 'echo "' + "$(x) " * (lines // 4)
        began_s = time.process_time()
        assert not translation(read(text, {})).values
        return time.process_time() - began_s

    assert taken_s(2000) < 10 * taken_s(500)
