"""The whole ladder of `prove` on processors, in a container, by the command line: killed half-way, gone on with, and
of no weight for what is UNPROVEN.
"""

import json
import os
import signal

import msgspec

from runner.images.store.stored_image import StoredImage
from runner.model.verdict import ProofRecord, ProvenGpu
from runner.proving.rungs import names
from runner.sites.proofs import digest_of
from tests.support.commands import Runner
from tests.support.waiting import until

LADDER = ("prove", "--pretend-cpu", "--quick", "--site", "local", "--runtime", "charliecloud")
LIMIT_S = 3600


def climbed(contained: Runner, words: tuple[str, ...]) -> str:
    """What a whole climb prints; it may take longer than other commands."""
    child = contained.start(*words)
    out, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, f"exit {child.returncode}\n{out.decode()}\n{err.decode()}"
    return out.decode()


def test_the_ladder_is_climbed_and_proves_nothing_of_gpus(contained: Runner, squashfs: StoredImage) -> None:
    # By its file: a name may mean another image when a build beside this one has ended, and all is done anew then.
    words = (*LADDER, "--runs", str(contained.runs), "--image", str(squashfs.path))
    root = contained.runs / "prove-local"

    child = contained.start(*words)
    until((root / "devices.json").exists, "the first rung has ended", timeout_s=300)
    until(lambda: list(root.glob("jobs/allreduce-1-*/0/*/job.json")), "the second has begun", timeout_s=300)
    refused = contained(*words, code=3).err
    assert "another `prove` is at work" in refused
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()

    out = climbed(contained, words)
    assert "devices: passed (before, with the same inputs)" in out
    assert len(list(root.glob("jobs/allreduce-1-*/0/*/job.json"))) == 1
    said = [line for line in out.splitlines() if not line.startswith((" ", "record:")) and "passed," not in line]
    assert said
    assert all(line.startswith("[pretend: CPU] ") for line in said), said
    assert all("[pretend: CPU]" in line for line in out.splitlines() if line.startswith("    ")), out
    assert "everything about GPUs stays UNPROVEN" in out

    record = msgspec.json.decode((root / "record.json").read_bytes(), type=ProofRecord)
    assert (record.pretend, record.gpus, record.driver) == (True, (), "")
    assert [each.rung for each in record.rungs] == list(names())
    assert {each.state for each in record.rungs} <= {"passed", "not applicable"}
    assert not (contained.state / "proofs").exists()
    shown = contained("site", "show", "local", code=0).out
    assert shown.count("on GPUs: UNPROVEN") == 2

    made_up = msgspec.structs.replace(
        record, pretend=False, driver="570.86.15", gpus=(ProvenGpu("GPU-0", "NVIDIA H100"),)
    )
    made_up = msgspec.structs.replace(made_up, digest=digest_of(made_up))
    (contained.state / "proofs").mkdir()
    (contained.state / "proofs/contained.json").write_text(json.dumps(msgspec.to_builtins(made_up)))
    assert contained("site", "show", "local", code=0).out.count("on GPUs: UNPROVEN") == 2

    again = contained(*words, code=0).out
    assert again.count("(before, with the same inputs)") == out.count(": passed")
