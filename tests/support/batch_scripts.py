"""Batch scripts of our own that have the facts of public ones (tests/fixtures/batch_scripts/public.yaml), and faults
planted into them: one change each.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PUBLIC = Path(__file__).resolve().parents[1] / "fixtures/batch_scripts/public.yaml"
_LETTERS = {"nodes": "N", "ntasks": "n", "cpus-per-task": "c", "partition": "p", "account": "A"}
_IN = {
    "wrapper": "apptainer_wrapper exec", "sif": "singularity exec --nv $IMAGE",
    "shifter": "shifter --image=me/image:1 --env A=1",
    "pyxis": "--container-image $IMAGE --container-mounts /data:/data",
}  # fmt: skip


@cache
def rows() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.load(PUBLIC.read_text(), yaml.CSafeLoader)
    return loaded


def script_of(row: Mapping[str, Any]) -> str:
    start = row["start"]
    lines = ["#!/bin/bash", *_directives(row), "", "module load our-modules", "export OUR_LEVEL=INFO"]
    if "no-shebang" in row.get("faults", ()):
        lines.insert(0, "# ours")
    if "visible" in start:
        lines.append(f"export CUDA_VISIBLE_DEVICES={start['visible']}")
    if start.get("world"):
        lines.append("export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))")
    if "var" in (start.get("each"), start.get("total")):
        lines.append(f"OUR_GPUS={row['placed'][1] if isinstance(row['placed'], list) else 1}")
    if start.get("each") == "asked":
        lines.append("OUR_GPUS=$(count-gpus)")
    lines += ["IMAGE=/data/ours.sif"] if start.get("in") else []
    lines += ['FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'] if "meet" in start else []
    lines += _launch(start)
    return "\n".join((*lines, ""))


def _directives(row: Mapping[str, Any]) -> list[str]:
    options = {**row["head"], "time": "0:20:00", "job-name": "ours", "output": "%x-%j.out"}
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    if row.get("form") == "one-line":
        return [f"#SBATCH {' '.join(words)}"]
    if row.get("form") == "short":
        words = [
            f"-{_LETTERS[name]} {value}" if name in _LETTERS else f"--{name} {value}" for name, value in options.items()
        ]
    return [f"#SBATCH {word}    # ours" for word in words]


def _launch(start: Mapping[str, Any]) -> Iterator[str]:
    words = _starter(start)
    program = start.get("program") or ("ours.py" if start.get("starter") not in (None, "mpirun") else "python ours.py")
    tail = f"{program} --epochs 3 {start.get('args', '')}".rstrip()
    inside = start.get("shell", False)
    via = start.get("via", "")
    if via == "array":
        yield "declare -a OURS=("
        yield from (f"    {word}  # ours" for word in words[1:])
        yield ")"
        line = " ".join(part for part in (*words[:1], '"${OURS[@]}"', tail) if part)
    elif via in ("variable", "choice"):
        text = " \\\n    ".join((*words, tail))
        yield f'OURS="{text}"' if via == "variable" else f'if [ -e x ]; then OURS="{text}"; else OURS=" "; fi'
        line = "$OURS"
    else:
        line = (" \\\n    " if start.get("lines") else " ").join((*words, tail))
    if inside:
        own = "RANK=\\$SLURM_PROCID LOCAL_RANK=\\$SLURM_LOCALID " if start.get("env") else ""
        before = f"{start['before']}; " if start.get("before") else ""
        line = f'bash -c "{before}{own}{line}"'
    elif via == "choice":
        line = f"eval {line}"
    by = ["srun", *start.get("opts", "").split()] if start["by"] == "srun" else []
    whole = " ".join((*by, *([_IN[start["in"]]] if start.get("in") else ()), line))
    yield f"if [ -e ours.txt ]; then\n  {whole}\nfi" if start.get("condition") else whole


def _starter(start: Mapping[str, Any]) -> list[str]:
    name = start.get("starter")
    if name is None:
        return []
    rank = "\\$SLURM_NODEID"
    numbers = {"var": "$OUR_GPUS", "slurm": "$SLURM_GPUS_PER_NODE", "asked": "$OUR_GPUS"}
    each = numbers.get(str(start.get("each")), start.get("each"))
    nodes = {"var": "$SLURM_NNODES"}.get(str(start.get("nodes")), start.get("nodes"))
    total = {"var": "$((SLURM_NNODES * OUR_GPUS))"}.get(str(start.get("total")), start.get("total"))
    meet = start.get("meet", "")
    if name == "torchrun":
        ways = {
            "": (), "standalone": ("--standalone",),
            "c10d": ("--rdzv_id=$SLURM_JOB_ID", "--rdzv_backend=c10d", "--rdzv_endpoint=$FIRST:29500"),
            "c10d-rank": ("--rdzv_backend c10d", "--rdzv_endpoint $FIRST:29500", f"--node_rank {rank}"),
        }  # fmt: skip
        called = "python -u -m torch.distributed.run" if start.get("module") else "torchrun"
        return [called, *_said("--nnodes=", nodes), *_said("--nproc_per_node=", each), *ways[meet]]
    if name == "accelerate":
        ways = {
            "": (), "c10d": ("--rdzv_backend c10d", "--main_process_ip $FIRST", "--main_process_port 29500"),
            "static": (f"--machine_rank={rank}", "--main_process_ip=$FIRST", "--main_process_port=29500"),
        }  # fmt: skip
        called = "python -m accelerate.commands.launch" if start.get("module") else "accelerate launch"
        counts = (*_said("--num_machines=", nodes), *_said("--num_processes=", total))
        return [called, *_said("", start.get("more")), "--multi_gpu", *counts, *ways[meet]]
    return [name, *_said("-n ", total)]


def _said(option: str, value: object) -> tuple[str, ...]:
    return () if value is None else (f"{option}{value}",)


@dataclass(frozen=True)
class Planted:
    """A script with one change, and the code that must name it."""

    name: str
    code: str
    text: str


# Code, what is changed (a regular expression that is in the script once at least; the first place counts), into what.
_CHANGES = (
    ("late-directive", r"^#SBATCH --time", "true\n#SBATCH --time"),
    ("unread-directive", r"^#SBATCH --time=", "#SBATCH time="),
    ("unread-directive", r"^#SBATCH --job-name", "#sbatch --job-name"),
    ("variable-in-directive", r"--output=%x-%j.out", "--output=$HOME/%x-%j.out"),
    ("variable-in-directive", r"--time=0:20:00", "--time=${LIMIT}"),
    ("no-shebang", r"\A#!/bin/bash\n", ""),
    ("dos-lines", r"\A#!/bin/bash\n", "#!/bin/bash\r\n"),
    ("broken-continuation", r" \\\n    --", " \\ \n    --"),
    ("unset-variable", r"--gpus-per-node=(?=[48]\b.*\n(.*\n)*.*SLURM_GPUS_PER_NODE)", "--gres=gpu:"),
    ("unset-variable", r"#SBATCH --ntasks-per-node=2(?=.*\n(.*\n)*.*SLURM_NTASKS_PER_NODE)", "#SBATCH --ntasks=4"),
    ("no-wait", r"^(srun .*)$(?=\n\Z)", r"\1 &"),
    ("slurm-in-container", r"^(srun .*(?:singularity|-image|shifter).*)python ours.py",
     r"\1bash -c 'python ours.py \\$(scontrol show job)'"),
    ("slurm-in-container", r"^#SBATCH --time", "#SBATCH --container-image=ours.sqsh --time"),
    ("tasks-and-gpus", r"--ntasks-per-node=4(?=(?!.*torchrun)(.*\n)*srun .*python3? )", "--ntasks-per-node=2"),
    ("tasks-and-gpus", r"--ntasks-per-node=8(?=(.*\n)*srun .*python )", "--ntasks-per-node=16"),
    ("gpus-per-task", r"--gres=gpu:(v100:)?4(?=(.*\n)*.*ntasks-per-node=4|.*\n(.*\n)*srun python)",
     "--gpus-per-task=1"),
    ("gpus-per-task", r"^srun --cpu-bind", "srun --gpu-bind=single:1 --cpu-bind"),
    ("starter-per-task", r"--ntasks-per-node=1(?=(.*\n)*.*(torchrun|accelerate|distributed.run))",
     "--ntasks-per-node=4"),
    ("counts", r"--nproc_per_node=4", "--nproc_per_node=3"),
    ("counts", r"--nnodes=4", "--nnodes=2"),
    ("counts", r"OUR_GPUS=8", "OUR_GPUS=4"),
    ("counts", r"mpirun -n 8", "mpirun -n 4"),
    ("counts", r" --nproc_per_node=(4|8|\S*GPUS\S*)", ""),
    ("not-by-srun", r"^srun (-l )?(?=(torchrun|\$OURS))", ""),
    ("not-by-srun", r"^srun (?=python )(?=(.*\n)*)", ""),
    ("no-rendezvous", r"--rdzv_endpoint[= ]\$FIRST", "--rdzv_endpoint=localhost"),
    ("no-rendezvous", r"--rdzv_endpoint[= ]\$FIRST:29500", "--tee=3"),
    ("no-rendezvous", r"--main_process_ip[= ]\$FIRST", "--main_process_ip=127.0.0.1"),
    ("node-rank", r"(--machine_rank=)\\\$SLURM_NODEID", r"\1$SLURM_NODEID"),
    ("node-rank", r"--rdzv_backend=c10d", "--node_rank=$SLURM_NODEID"),
    ("srun-cpus", r"^#SBATCH --time", "#SBATCH --cpus-per-task=8 --time"),
    ("visible-devices", r"CUDA_VISIBLE_DEVICES=0,1,2,3", "CUDA_VISIBLE_DEVICES=0"),
    ("no-gpus", r"^#SBATCH --gres=gpu:[v0-9:]*4.*\n(?=(.*\n)*srun torchrun)", ""),
    ("uneven-tasks", r"--ntasks-per-node=4(?=(.*\n)*srun )", "--ntasks=8"),
)  # fmt: skip
_EACH, _ALL = 3, 60


def planted() -> tuple[Planted, ...]:
    """60 faults: each change in up to three scripts that do not have its fault, the changes in turn."""
    made: list[list[Planted]] = []
    for place, (code, old, new) in enumerate(_CHANGES):
        of_change: list[Planted] = []
        names = list(rows().items())
        names = names[place * 7 % len(names) :] + names[: place * 7 % len(names)]
        for name, row in names:
            text = script_of(row)
            changed = re.sub(old, new, text, count=1, flags=re.MULTILINE)
            if changed != text and code not in row.get("faults", ()) and _matters(code, row) and len(of_change) < _EACH:
                of_change.append(Planted(f"{code} in {name}", code, changed))
        made.append(of_change)
    turns = [group[turn] for turn in range(_EACH) for group in made if len(group) > turn]
    return tuple(turns[:_ALL])


def _matters(code: str, row: Mapping[str, Any]) -> bool:
    """Whether the change makes a fault there: some are faults of several nodes only, or of ranks under srun."""
    nodes = row["head"].get("nodes", 1)
    if code in ("not-by-srun", "node-rank", "no-rendezvous", "uneven-tasks"):
        return isinstance(row["placed"], list) and int(nodes) > 1
    return isinstance(row["placed"], list) and (code != "srun-cpus" or row["start"]["by"] == "srun")
