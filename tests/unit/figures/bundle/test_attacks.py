"""Bundles that were altered: whatever was done, ``verify`` refuses, in words, and writes nothing elsewhere."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import Exit, NotProvenError
from runner.core.files import sha256
from runner.figures.bundle import bag
from runner.figures.bundle.making import TOP, make
from runner.figures.bundle.verification import verify
from tests.support.bundles import Members, edited, forged, members_of, write_members
from tests.support.commands import Call
from tests.support.measured_runs import measured_run

RUN = "20260921-120000-train-4"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two runs, signed."""
    root = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_STATE", str(root / "state"))
        key(root, "me")
        make([measured_run(root / "runs", place) for place in range(2)], root / "b.tar", root / "me")
    assert verify(root / "b.tar", root / "me.allowed").signer == "me@example.org"
    return root / "b.tar"


def key(root: Path, name: str) -> None:
    """A key, and a file that allows it and no other."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
    (root / f"{name}.allowed").write_text(f"{name}@example.org {(root / f'{name}.pub').read_text()}")


@pytest.fixture
def file(good: Path, tmp_path: Path) -> Path:
    """A copy of it that may be altered; nothing else may appear beside it."""
    (tmp_path / "in").mkdir()
    shutil.copy(good, tmp_path / "in" / "b.tar")
    return tmp_path / "in" / "b.tar"


def refusal(file: Path, allowed: Path | None = None) -> str:
    """The words with which it is refused."""
    with pytest.raises(NotProvenError) as caught:
        verify(file, allowed)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return f"{caught.value.what} at {caught.value.where}"


def test_an_altered_byte_is_found_wherever_it_is(file: Path, good: Path) -> None:
    """In a header, in a record, in a manifest, in the signature, in what fills a block, in the end."""
    content, chance = good.read_bytes(), random.Random(7)
    starts = [place for place in range(0, len(content), 512) if content[place : place + 17] == TOP.encode()]
    places = {*chance.sample(range(len(content)), 200), *(place + chance.randrange(512) for place in starts)}
    places |= {len(content) - 1, len(content) - 1024, *range(starts[-1] + 512, starts[-1] + 800, 17)}
    for place in sorted(places):
        altered = bytearray(content)
        altered[place] ^= chance.randrange(1, 256)
        file.write_bytes(altered)
        refusal(file)


def test_a_bundle_that_is_cut_off_or_has_more_is_refused(file: Path, good: Path) -> None:
    content = good.read_bytes()
    for length in (0, 1, 511, 512, 513, 5_000, -1, -512, -1024, -1025):
        file.write_bytes(content[:length])
        refusal(file)
    for more in (b"\0", b"x", bytes(512), b"more" * 300):
        file.write_bytes(content + more)
        assert "something behind its end" in refusal(file)
    file.write_bytes(content[: 512 * 2] + content)  # a header and one block of content
    assert "twice, or out of order" in refusal(file)
    file.write_bytes(gzip.compress(bytes(1 << 24)))
    assert "not a bundle" in refusal(file), "what is packed is not unpacked"


# Members that were replaced, with their new content, and a part of the names of those that were removed.
ALTERED: dict[str, tuple[Callable[[Members], Members], str]] = {
    "a file added": (lambda _members: {"data/runs/extra": b"x"}, ""),
    "a record added": (lambda _members: {f"data/runs/{RUN}/ranks/4.start.json": b"{}"}, ""),
    "a tag file added": (lambda _members: {"fetch.txt": b"https://example.org - data/x\n"}, ""),
    "a manifest of another kind": (lambda _members: {"manifest-md5.txt": b""}, ""),
    "another declaration": (lambda _members: {"bagit.txt": b"BagIt-Version: 0.97\n"}, ""),
    "a manifest with a comment": (lambda members: {bag.MANIFEST: members[bag.MANIFEST] + b"# by me\n"}, ""),
    "a manifest in capitals": (lambda members: {bag.MANIFEST: members[bag.MANIFEST].upper()}, ""),
    "a record removed": (lambda _members: {}, "0.exit"),
    "all manifests removed": (lambda _members: {}, bag.MANIFEST),
    "the tag manifest removed": (lambda _members: {}, bag.TAG_MANIFEST),
    "nothing but tag files": (lambda _members: {}, "data/"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_members_that_were_added_removed_or_replaced(case: str, file: Path) -> None:
    new, lacks = ALTERED[case]
    members = members_of(file)
    members |= new(members)
    write_members(file, {name: each for name, each in members.items() if not lacks or lacks not in name})
    assert "altered" in refusal(file)


def entry(name: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size, made.mtime, made.mode = len(content), 315_532_800, 0o644
    for field, value in fields.items():
        setattr(made, field, value)
    return made, content


HOSTILE = {
    "a path above": entry("../escaped"),
    "a path above, deeper": entry(f"{TOP}/data/runs/../../../../escaped"),
    "an absolute path": entry("/tmp/escaped"),
    "a hidden file": entry(f"{TOP}/.ssh/authorized_keys"),
    "a backslash": entry(f"{TOP}\\data\\x"),
    "an empty part": entry(f"{TOP}//data/x"),
    "a link": entry(f"{TOP}/data/bundle.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": entry(f"{TOP}/data/bundle.json", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a directory": entry(f"{TOP}/data", b"", type=tarfile.DIRTYPE),
    "a device": entry(f"{TOP}/data/bundle.json", b"", type=tarfile.CHRTYPE),
    "a pipe": entry(f"{TOP}/data/bundle.json", b"", type=tarfile.FIFOTYPE),
    "an owner": entry(f"{TOP}/bag-info.txt", uid=1000, uname="me"),
    "a mode": entry(f"{TOP}/bag-info.txt", mode=0o4755),
    "a time": entry(f"{TOP}/bag-info.txt", mtime=0),
    "a long name of GNU": entry(f"{TOP}/data/{'x' * 200}"),
    "another directory": entry("another/bag-info.txt"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_members_that_no_bundle_has(case: str, file: Path) -> None:
    made, content = HOSTILE[case]
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(made, io.BytesIO(content))
    refusal(file)
    assert not (file.parent.parent / "escaped").exists()


@pytest.mark.parametrize("size", ["77777777777", "00000000000", "02000000000", "-0000000001", "٠0000000001"])
def test_a_size_that_is_not_there_takes_no_memory(size: str, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[124:135] = size.encode()[:11]
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def removed(part: str) -> Callable[[Members], None]:
    def change(payload: Members) -> None:
        for each in [each for each in payload if part in each]:
            del payload[each]

    return change


def added(name: str, content: bytes) -> Callable[[Members], None]:
    return lambda payload: payload.update({name: content})


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Members], None]:
    def change(payload: Members) -> None:
        file = next(each for each in sorted(payload) if each.endswith(name))
        assert old in payload[file]
        payload[file] = payload[file].replace(old, new)

    return change


VERDICT, REPORT, PLAN, ABOUT = "verdict.json", "1.report.json", "plan.json", "bundle.json"


def of(name: str, /, **fields: Any) -> Callable[[Members], None]:
    """Fields of a JSON file replaced."""
    return edited(name, lambda each: each | fields)


def about(**fields: Any) -> Callable[[Members], None]:
    """Fields replaced of what the bundle says of its first run."""
    return edited(ABOUT, lambda each: each["runs"][0].update(fields))


def copied(payload: Members) -> None:
    """One launch under two names."""
    runs = json.loads(payload[ABOUT])
    for name in [name for name in payload if name.startswith(f"runs/{RUN}/")]:
        payload[name.replace(RUN, f"{RUN}.2")] = payload[name]
    runs["runs"].insert(1, runs["runs"][0] | {"run": f"{RUN}.2"})
    payload[ABOUT] = json.dumps(runs).encode()


# Every manifest fits again: only the records can tell.
FORGED: dict[str, tuple[Callable[[Members], None], str]] = {
    "the figure": (of(VERDICT, images_per_s=4000.0), "images_per_s differs"),
    "the figure, a little": (
        edited(VERDICT, lambda each: each | {"images_per_s": each["images_per_s"] + 1e-6}),
        "images_per_s differs",
    ),
    "no number": (of(VERDICT, images_per_s=float("nan")), "images_per_s differs"),
    "without an end": (of(VERDICT, images_per_s=float("inf")), "images_per_s differs"),
    "a huge number": (replaced(VERDICT, b'"cut_steps": 0', b'"cut_steps": ' + b"9" * 5000), "no verdict"),
    "an interval": (of(VERDICT, precision=[1.0, 2.0]), "precision.0 differs"),
    "steady": (edited(VERDICT, lambda each: each | {"steady": not each["steady"]}), "steady differs"),
    "a sentence": (edited(VERDICT, lambda each: each["proven"].append("on the moon")), "proven differs"),
    "a label": (of(VERDICT, demonstration="by hand"), "demonstration differs"),
    "the whole verdict": (edited(VERDICT, lambda each: {"outcome": "measured"}), "differs"),
    "a verdict that is a list": (edited(VERDICT, lambda each: [each]), "no verdict"),
    "a verdict that is too deep": (added(f"runs/{RUN}/{VERDICT}", b"[" * 100_000), "no verdict"),
    "one rank's times": (
        edited("0.report.json", lambda each: each | {"ends_s": [end / 2.0 for end in each["ends_s"]]}),
        "differs",
    ),
    "a batch without end": (of(REPORT, batch_size=10**30), "differs"),
    "a batch": (of(REPORT, batch_size=20), "differs"),
    "weights": (of(REPORT, parameter_checksum="q"), "differs"),
    "a time that is no number": (replaced("0.report.json", b'"warmup_s": 30.0', b'"warmup_s": NaN'), "differs"),
    "a record": (removed(f"{RUN}/ranks/3.start.json"), "of which 3 have records"),
    "a report": (removed(f"{RUN}/ranks/3.report.json"), "differs"),
    "the result": (of("result.json", preliminary_images_per_s=1.0), "differs"),
    "the plan": (of(PLAN, recipe="another"), "differs"),
    "ranks without end": (of(PLAN, tasks_per_node=[10**15]), "plan cannot be read"),
    "no ranks": (of(PLAN, tasks_per_node=[]), "have records"),
    "fewer than none": (of(PLAN, tasks_per_node=[-4, 8]), "have records"),
    "fewer GPUs than none": (of(PLAN, gpus_per_node=-7), "differs"),
    "no plan": (edited(PLAN, lambda each: {}), "plan cannot be read"),
    "the script": (replaced("job.sh", b"four", b"five"), "not the one that was submitted"),
    "the job": (removed(f"{RUN}/job.json"), "has no job.json"),
    "the job's end": (removed(f"{RUN}/ended.json"), "differs"),
    "a failed job": (of("ended.json", name="FAILED", exit_code=1), "differs"),
    "a program": (added(f"runs/{RUN}/recipe/main.py", b"x"), "does not belong"),
    "a run that it does not name": (added(f"runs/another/{PLAN}", b"{}"), "does not name the run another"),
    "a run taken away": (removed(RUN), "runs differs"),
    "one launch twice": (copied, "are one launch: one is a copy of the other"),
    "what it says of itself": (about(images_per_s=9e9), "images_per_s differs"),
    "its site": (about(site="elsewhere"), "site differs"),
    "a key of its own": (about(certified="by me"), "runs.certified differs"),
    "a key twice": (replaced(ABOUT, b'"images_per_s": ', b'"images_per_s": 9e9, "images_per_s": '), "cannot be read"),
    "doubts taken away": (
        edited(ABOUT, lambda each: each["runs"][0]["figure"].pop("doubts") and None),
        "doubts differs",
    ),
    "nothing of itself": (added(ABOUT, b"{}"), "cannot be read"),
    "a plan as if redacted": (about(redacted={PLAN: "0" * 64}), "nothing was redacted"),
    "a file elsewhere as if redacted": (about(redacted={"../../x": "0"}), "nothing was redacted"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forger_who_makes_the_manifests_fit_is_found_by_the_records(case: str, file: Path) -> None:
    change, says = FORGED[case]
    forged(file, change)
    unsigned(file)
    assert says in refusal(file)


def unsigned(file: Path) -> None:
    write_members(file, {name: each for name, each in members_of(file).items() if name != bag.SIGNATURE})


def test_what_is_refused_is_refused_for_what_was_changed(file: Path, good: Path) -> None:
    forged(file, removed("nothing at all"))
    assert file.read_bytes() == good.read_bytes()
    members = members_of(file.rename(file.with_name("x")))
    assert verify(file.with_name("x")).sha256 == sha256(members[bag.TAG_MANIFEST]), "the file's name says nothing"


def test_a_forger_of_every_record_is_found_by_the_signature_only(file: Path, good: Path) -> None:
    """What unsigned means: a bundle whose records were all forged alike is consistent."""
    forged(file, edited(ABOUT, lambda about: about | {"runs": about["runs"][1:]}))
    forged(file, removed(RUN))
    assert "not one of this bundle" in refusal(file)
    unsigned(file)
    consistent = verify(file)
    assert (consistent.signature, len(consistent.runs)) == ("none", 1)
    assert "has no signature" in refusal(file, good.parent / "me.allowed")


def test_who_signed_it_and_who_may(file: Path, good: Path, tmp_path: Path) -> None:
    root = good.parent
    assert (verify(file).signature, verify(file, root / "me.allowed").signature) == ("unknown signer", "valid")
    key(tmp_path, "stranger")
    mine = (root / "me.allowed").read_text()
    allowed = {
        "a stranger": ((tmp_path / "stranger.allowed").read_text(), "signed by a stranger"),
        "until 2020": (mine.replace(" ", ' valid-before="20200101" ', 1), ", or not today, or not for this purpose"),
        "for git": (mine.replace(" ", ' namespaces="git" ', 1), ", or not today, or not for this purpose"),
        "a pattern": (f"# a comment\n{mine.replace('me@', 'a@example.org,*@', 1)}", ""),
    }
    for case, (text, why) in allowed.items():
        (tmp_path / "allowed").write_text(text)
        shown = refusal(file, tmp_path / "allowed") if why else verify(file, tmp_path / "allowed").signature
        assert (why or "valid") in shown, case


def test_a_signature_of_another_form_bundle_or_purpose(file: Path, good: Path) -> None:
    members = members_of(file)
    signature, manifest = members[bag.SIGNATURE], members[bag.TAG_MANIFEST]
    for altered in (b"", b"x", signature + b"\n", signature.replace(b"\n", b"\r\n"), signature.lower()):
        write_members(file, members | {bag.SIGNATURE: altered})
        assert "the signature was altered" in refusal(file)
    for namespace, content in (("gpu-runner-bundle", b"another"), ("file", manifest)):
        words = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(good.parent / "me")]
        made = subprocess.run(words, input=content, capture_output=True, check=True).stdout
        write_members(file, members | {bag.SIGNATURE: made})
        assert "not one of this bundle" in refusal(file)


def test_a_signature_is_not_believed_without_ssh_keygen(
    file: Path, good: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert verify(file).signature == "not checked"
    words = ("verify", str(file), "--allowed-signers", str(good.parent / "me.allowed"))
    assert "no ssh-keygen" in call(*words, code=Exit.USAGE).err


def test_what_a_forger_wrote_reaches_no_terminal(file: Path, call: Call) -> None:
    forged(file, edited(VERDICT, lambda verdict: verdict["versions"].update({"\x1b[2J\u202e": "1"})))
    unsigned(file)
    assert r"versions.\x1b[2J\u202e differs" in call("verify", str(file), code=Exit.NOT_PROVEN).err


def test_the_commands_of_the_page_verify_it_without_gpu_runner(file: Path, good: Path, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs/report.md").read_text("utf-8")
    lines = [line.strip() for line in page[page.index("Without gpu-runner:") :].splitlines()[1:] if line.strip()]
    assert len(lines) == 2
    script = "\n".join(lines).replace("figures.tar", str(file)).replace("FILE", str(good.parent / "me.allowed"))
    words = ["bash", "-euo", "pipefail", "-c", script.replace("ada@", "me@")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'Good "gpu-runner-bundle" signature for me@example.org' in done.stdout
