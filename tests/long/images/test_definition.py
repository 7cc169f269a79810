"""Apptainer's real builder on our definition file, by an ordinary user (``--fakeroot``), with no engine answering."""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.box import root as box_root
from runner.core import paths
from tests.support import editing, light_base
from tests.support.commands import ran
from tests.support.documents import result
from tests.support.framework_matrix import GLOO, ROWS, base_of, benchmark
from tests.support.users import UNPRIVILEGED

pytestmark = pytest.mark.integration
LIMIT_S = 1500
# Apptainer out of a root of Debian unstable (a box has no network to install from). Builds go as they do for users of a
# cluster, who own what is private to a build meanwhile; a SIF is mounted by /dev/fuse, which a machine may keep from
# them.
APPTAINER = """#!/bin/sh
user=0
[ "$1" != build ] || {{ shift; set -- build --fakeroot "$@"; user={user}; }}
exec unshare --mount --propagation private sh -c '
set -e
root=$1 place=$2 user=$3; shift 3
mount --bind "$root" "$root"
for name in proc sys dev tmp; do mount --rbind "/$name" "$root/$name"; done
for name in hosts resolv.conf; do mount --bind "/etc/$name" "$root/etc/$name"; done
mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . mnt
umount -l /mnt
cd /
code=0 out= file=
for word do out=$file file=$word; done
[ "$user" = 0 ] || chown -R "$user" "${{out%/*}}" "${{file%/*}}"
setpriv --reuid="$user" --regid="$user" --clear-groups \\
    env HOME="$place/home" USER=builder APPTAINER_TMPDIR="$place/home" /usr/bin/apptainer "$@" || code=$?
[ "$user" = 0 ] || chown -R 0 "${{out%/*}}" "${{file%/*}}"
exit $code
' sh {root} {place} "$user" "$@"
"""


@dataclass(frozen=True)
class Login:
    place: Path

    def runner(self, *words: str) -> str:
        own = {name: str(self.place / place) for name, place in (("RUNNER_CACHE", "cache"), ("RUNNER_STORE", "store"))}
        env = {**os.environ, **own, "PATH": f"{self.place}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        env["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
        return ran([sys.executable, "-m", "runner", *words], timeout_s=LIMIT_S, env=env).out

    def inside(self, image: str, *words: str) -> str:
        return ran([self.place / "bin/apptainer", "exec", image, *words], timeout_s=LIMIT_S).out


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    root = box_root.ensure("26.05", lambda _line: None).path
    with tempfile.TemporaryDirectory(prefix="login-", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        place.chmod(0o755)
        for inner in ("bin", "home", "store", "cache"):
            (place / inner).mkdir()
        for inner in ("home", "store"):
            (place / inner).chmod(0o777)
        (place / "cache/wheels").symlink_to(paths.cache("wheels"))
        program = place / "bin/apptainer"
        program.write_text(APPTAINER.format(root=root, user=UNPRIVILEGED, place=place))
        program.chmod(0o755)
        yield Login(place)


def saved(client: docker.DockerClient, reference: str, login: Login) -> str:
    file = login.place / f"{reference.replace('/', '-').replace(':', '-')}.tar"
    with file.open("wb") as out:
        out.writelines(client.images.get(reference).save(named=True))
    return f"docker-archive:{file}"


def built(login: Login, base: str) -> dict[str, Any]:
    image = result(login.runner("build", "pytorch", "--with", "apptainer", "--base", base, "--json"))
    assert isinstance(image, dict)
    return image


def test_apptainer_does_every_step_and_the_store_has_the_image(
    login: Login, engine_client: docker.DockerClient
) -> None:
    name = f"gpu-runner/test-light-{os.getpid()}:1"
    engine_client.api.import_image_from_data(light_base.archive(), repository=name, changes=list(light_base.CHANGES))
    try:
        base = saved(engine_client, name, login)
    finally:
        engine_client.images.remove(name)
    first = built(login, base)
    about = json.loads(login.inside(first["path"], "cat", "/opt/runner/image.json"))
    assert about == {"framework": "pytorch", "base": base, "base_digest": first["base_digest"]}
    assert login.inside(first["path"], "bash", "-c", 'echo "$LIGHT"').strip() == "a b"
    (row,) = result(login.runner("images", "list", "--json"))
    assert (row["path"], row["problem"], row["reference"]) == (first["path"], "", first["reference"])
    assert built(login, base)["up_to_date"]
    assert list((login.place / "cache/builds").iterdir()) == []
    assert list((login.place / "home").glob("build-temp*")) == []


def test_two_ranks_train_in_what_apptainer_has_built(login: Login, engine_client: docker.DockerClient) -> None:
    image = built(login, saved(engine_client, base_of(engine_client), login))["path"]
    said = login.inside(image, *GLOO, *benchmark(ROWS[0]))
    assert re.search(r"throughput: [\d.]+ images/s", said), said
    about = json.loads(login.inside(image, "cat", "/opt/runner/image.json"))
    assert about["horovod"]["proven"] == ["gloo", "mpi"]


def test_an_image_is_edited_by_apptainer(login: Login) -> None:
    """A squashfs; a SIF takes the same way, and is written by ``apptainer build`` at its end."""
    with tempfile.TemporaryDirectory(prefix="edits-", ignore_cleanup_errors=True) as directory:
        editing.assert_edits_by("apptainer", f"{login.place}/bin", Path(directory))
