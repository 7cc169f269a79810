"""Slurm's refusals and reasons for waiting, beside plainer words."""

from __future__ import annotations

import pytest

from runner.backends.schedulers.slurm.client import explained, fix, more_than_there_is

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (FAILED + "Invalid account or account/partition combination specified", "--account"),
        (FAILED + "Invalid qos specification", "--queue or -S qos=NAME"),
        (
            FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "ask for fewer GPUs or less time",
        ),
        (FAILED + "Invalid partition name specified", "sinfo --summarize"),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", "--time"),
        (FAILED + "Requested node configuration is not available", "no node has so many GPUs"),
        (FAILED + "Invalid feature specification", "constraint"),
        ("sbatch: unrecognized option '--image=docker:x'", "its plugin is not loaded"),
        ("sbatch: error: spank: /x.so: Dlopen of plugin file failed", "plugstack.conf) is broken"),
        (
            "sbatch: error: pyxis: failed to parse configuration\nsbatch: error: Failed to initialize plugin stack",
            "broken",
        ),
        (FAILED + "Something new", "see the script"),
    ],
)
def test_a_refusal_has_its_fix(refusal: str, says: str) -> None:
    assert says in fix(refusal)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("AssocGrpGRES", "the account's limit on GPUs is reached: it starts when"),
        ("AssocGrpCpuLimit", "the account's limit on CPUs is reached"),
        ("AssocMaxJobsLimit", "the account's limit on jobs at once is reached"),
        ("AssocMaxWallDurationPerJobLimit", "more than the account's limit on time of one job: it will never start"),
        ("QOSMaxGRESPerUser", "the QOS's limit on GPUs is reached"),
        ("QOSMaxGRESPerJob", "it will never start"),
        ("QOSGrpNewThing", "a limit of the QOS is reached"),
        ("ReqNodeNotAvail,_UnavailableNodes:dgx01", "down, drained or reserved"),
        ("user_env_retrieval_failed_requeued_held", "`slurm: {export: nil}`"),
        ("Resources", "the nodes that it needs are busy"),
    ],
)
def test_a_reason_stands_before_what_it_means(reason: str, says: str) -> None:
    assert explained(reason).startswith(f"{reason}: ")
    assert says in explained(reason)


@pytest.mark.parametrize("reason", ["", "None", "SomethingNew"])
def test_what_is_not_known_stays_as_it_is(reason: str) -> None:
    assert explained(reason) == reason


def test_more_nodes_than_the_cluster_has_are_counted() -> None:
    listing = "dgx01|gpu:a100:8(S:0-1)\ndgx02|gpu:a100:8(S:0-1)\ndgx02|gpu:a100:8(S:0-1)\n"  # of two partitions
    assert more_than_there_is(3, listing) == "the job needs 3 nodes; this cluster has 2 (16 GPUs): request no more"
    assert not more_than_there_is(2, listing)
    assert not more_than_there_is(3, "")
