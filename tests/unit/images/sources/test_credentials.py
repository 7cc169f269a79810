"""Logins are found where Docker, Podman and Enroot keep them, and are never shown."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from runner.core.errors import RefusedError
from runner.images.sources import credentials, registry_http
from runner.images.sources.credentials import Login

SECRET = "not-to-be" + "-seen"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "ENROOT_CONFIG_PATH", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def auths(host: str, user: str = "me", password: str = SECRET) -> dict[str, object]:
    return {"auths": {host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}}


def test_there_is_no_login_until_one_is_kept() -> None:
    assert credentials.find("nvcr.io") is None


@pytest.mark.parametrize(
    ("place", "variable"),
    [
        (".docker/config.json", ""),
        ("elsewhere/config.json", "DOCKER_CONFIG"),
        ("run/containers/auth.json", ""),
        (".config/containers/auth.json", ""),
    ],
)
def test_dockers_and_podmans_files(home: Path, monkeypatch: pytest.MonkeyPatch, place: str, variable: str) -> None:
    path = write(home / place, auths("nvcr.io", "$oauthtoken"))
    if variable:
        monkeypatch.setenv(variable, str(path.parent))
    assert credentials.find("nvcr.io") == Login(str(path), "$oauthtoken", SECRET)
    assert credentials.find("other.io") is None


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io"])
def test_the_hub_has_several_names(home: Path, key: str) -> None:
    write(home / ".docker/config.json", auths(key))
    found = credentials.find("docker.io")
    assert found is not None
    assert found.password == SECRET


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_credential_helper_is_run(home: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    answer = json.dumps({"Username": "<token>", "Secret": SECRET})
    script = f"#!/bin/sh\nread host\necho \"$1 $host\" > {home}/asked\necho '{answer}'\n"
    helper = write(home / "bin/docker-credential-test", script)
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:/usr/bin:/bin")
    path = write(home / ".docker/config.json", {key: {"r.io:5000": "test"} if key == "credHelpers" else "test"})
    assert credentials.find("r.io:5000") == Login(str(path), token=SECRET)
    assert (home / "asked").read_text() == "get r.io:5000\n"


@pytest.mark.filterwarnings("error")
def test_a_missing_credential_helper_is_reported(home: Path) -> None:
    path = write(home / ".docker/config.json", {"credsStore": "nowhere"})
    with pytest.raises(RefusedError, match="docker-credential-nowhere") as caught:
        credentials.find("r.io")
    assert (caught.value.where, caught.value.fix) == (str(path), "log in again: docker login r.io")


def test_enroots_file_by_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""# machine nvcr.io login wrong password wrong
machine nvcr.io login $oauthtoken password {SECRET}
machine authn.nvidia.com   login $oauthtoken   password two words\t
machine registry-1.docker.io login me password $FROM_ELSEWHERE
machine r.io login me password ${{FROM_ELSEWHERE}}
machine g.io login oauth2accesstoken password $(gcloud auth print-access-token)
"""
    path = write(home / ".config/enroot/.credentials", text)
    monkeypatch.setenv("FROM_ELSEWHERE", "there")
    found = {host: credentials.find(host) for host in ("nvcr.io", "authn.nvidia.com", "docker.io", "r.io:443")}
    assert found == {
        "nvcr.io": Login(str(path), "$oauthtoken", SECRET),
        "authn.nvidia.com": Login(str(path), "$oauthtoken", "two words"),
        "docker.io": Login(str(path), "me", "there"),
        "r.io:443": Login(str(path), "me", "there"),
    }
    with pytest.raises(RefusedError, match="is a command, and commands of files are not run here"):
        credentials.find("g.io")
    monkeypatch.delenv("FROM_ELSEWHERE")
    with pytest.raises(RefusedError, match="names a variable that is not set"):
        credentials.find("r.io")
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(home / "nowhere"))
    assert credentials.find("nvcr.io") is None


def test_a_login_of_enroots_file_goes_to_no_other_port(home: Path) -> None:
    """Netrc has no ports: what listens on another one may be another user's."""
    text = "machine r.io login me password one\nmachine r.io:5000 login you password two\n"
    path = write(home / ".config/enroot/.credentials", text)
    assert credentials.find("r.io") == Login(str(path), "me", "one")
    assert credentials.find("r.io:5000") == Login(str(path), "you", "two")
    assert credentials.find("r.io:5001") is None
    refused = registry_http.login_needed("r.io:5001", "x", None, 401)
    assert "a line `machine r.io:5001 login ...` in Enroot's .credentials" in refused.fix


def test_a_login_does_not_show_itself() -> None:
    assert SECRET not in repr(Login("file", "me", SECRET, SECRET))


def test_ngc_without_a_login_says_exactly_what_to_do() -> None:
    refused = registry_http.login_needed("nvcr.io", "nvidia/pytorch", None, 401)
    assert "requires a login for nvidia/pytorch (401), and there is none here" in refused.what
    for words in (
        "docker login nvcr.io",
        "$oauthtoken",
        "machine authn.nvidia.com",
        "https://org.ngc.nvidia.com/setup",
    ):
        assert words in refused.fix


@pytest.mark.parametrize(
    ("netloc", "loopback"),
    [
        ("localhost:5000", True), ("127.0.0.1", True), ("127.8.9.1:80", True), ("[::1]:5000", True),
        ("localhost.example.org", False), ("10.0.0.1:5000", False), ("nvcr.io", False), ("127.0.0.1.nip.io", False),
    ],
)  # fmt: skip
def test_only_this_machine_itself_is_spoken_to_without_tls(netloc: str, loopback: bool) -> None:
    assert credentials.is_loopback(netloc) == loopback


def test_how_long_a_registry_asks_to_wait() -> None:
    assert registry_http.retry_after("7") == 7.0
    assert registry_http.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    later = registry_http.retry_after("Fri, 31 Dec 2100 23:59:59 GMT")
    assert later is not None
    assert later > 1e9
    for nothing in ("", "soon", "-5", "9" * 12):
        assert registry_http.retry_after(nothing) is None
