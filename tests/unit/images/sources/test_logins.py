"""Logins are found where Docker, Podman and Enroot keep them, and go to their registry and its token service alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.images import reference as references
from runner.images.sources import credentials, registry_http
from runner.images.sources.credentials import Login
from runner.images.sources.registry import Registry
from runner.images.sources.registry_http import Connection
from tests.support.http_servers import Answer, Received, Server, certificate, serving

SECRET = "not-to-be" + "-seen"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "ENROOT_CONFIG_PATH", "XDG_CONFIG_HOME", "RUNNER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
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


LOGIN = base64.b64encode(f"me:{SECRET}".encode()).decode()
MANIFEST = Answer(headers={"Docker-Content-Digest": "sha256:" + "1" * 64})
Reply = Callable[[Received], Answer]


def keep_login(home: Path, host: str, *, refresh: bool = False) -> None:
    """What `docker login` keeps: a password, or a refresh token."""
    entry = {"auth": base64.b64encode(b"<token>:").decode(), "identitytoken": SECRET} if refresh else {"auth": LOGIN}
    path = home / ".docker/config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"auths": {host: entry}}))


def registry(realm: str, *, kind: str = "Bearer", rest: str = "") -> Reply:
    """A registry that wants a token of that realm."""

    def reply(request: Received) -> Answer:
        if request.headers.get("Authorization") == "Bearer good":
            return MANIFEST
        return Answer(401, {"WWW-Authenticate": f'{kind} realm="{realm}"{rest}'})

    return reply


def gives_token(request: Received) -> Answer:
    return Answer(body=b'{"token": "good"}')


def gives_token_to_logins(request: Received) -> Answer:
    shown = request.headers.get("Authorization") or SECRET in request.text
    return gives_token(request) if shown else Answer(401)


def resolve(host: str, name: str = "some/image") -> str:
    return Registry(references.parse(f"{host}/{name}:1"), lambda _: None).resolve("1")


class Servers(ExitStack):
    """Servers that end with the test; the first answer is known only once others have their ports."""

    def start(self, reply: Reply, tls: Path | None = None) -> Server:
        return self.enter_context(serving(reply, tls))

    def asking(self, service: Server, name: str = "127.0.0.1") -> str:
        """A registry, as its host and port, that wants a token of the service, which it calls so."""
        return f"127.0.0.1:{self.start(registry(f'http://{name}:{service.port}/token')).port}"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started


@pytest.mark.parametrize("refresh", [False, True], ids=["password", "refresh token"])
def test_the_registrys_own_token_service_gets_the_login(servers: Servers, home: Path, refresh: bool) -> None:
    service = servers.start(gives_token_to_logins)
    host = servers.asking(service)
    keep_login(home, host, refresh=refresh)
    assert resolve(host) == "sha256:" + "1" * 64
    (request,) = service.received
    assert request.method == ("POST" if refresh else "GET")
    assert (SECRET if refresh else LOGIN) in request.text


@pytest.mark.parametrize("refresh", [False, True], ids=["password", "refresh token"])
def test_another_hosts_token_service_gets_none_unless_the_user_names_it(
    servers: Servers, home: Path, refresh: bool
) -> None:
    stranger = servers.start(gives_token_to_logins)
    host = servers.asking(stranger, "localhost")
    keep_login(home, host, refresh=refresh)
    with pytest.raises(RefusedError, match=f"names localhost:{stranger.port} to send it to") as caught:
        resolve(host)
    assert stranger.received, "it may give a token to anybody"
    assert not [request for request in stranger.received if SECRET in request.text or LOGIN in request.text]
    assert SECRET not in str(caught.value)
    # The refusal prints the very lines that allow it.
    config, line = caught.value.fix.split("write into ")[1].split(": ", 1)
    Path(config).parent.mkdir(parents=True)
    Path(config).write_text(line)
    assert resolve(host) == "sha256:" + "1" * 64
    assert [request for request in stranger.received if SECRET in request.text or LOGIN in request.text]


def test_what_is_public_is_had_by_a_strangers_token_without_the_login(servers: Servers, home: Path) -> None:
    stranger = servers.start(gives_token)
    host = servers.asking(stranger, "localhost")
    keep_login(home, host)
    assert resolve(host) == "sha256:" + "1" * 64
    assert not [request for request in stranger.received if LOGIN in request.text]


def test_a_login_kept_for_the_token_service_itself_is_not_for_every_registry(servers: Servers, home: Path) -> None:
    service = servers.start(gives_token_to_logins)
    host = servers.asking(service, "localhost")
    keep_login(home, f"localhost:{service.port}")
    with pytest.raises(RefusedError, match="requires a login"):
        resolve(host)
    assert service.received
    assert not [request for request in service.received if LOGIN in request.text]


def test_a_registry_gets_no_token_by_the_login_of_another_port_of_its_host(servers: Servers, home: Path) -> None:
    """On a login node each port may be another user's: this one would have a token for what only that one shows."""
    service = servers.start(gives_token_to_logins)
    planted = servers.start(registry(f"http://127.0.0.1:{service.port}/token"))
    keep_login(home, f"127.0.0.1:{service.port}")
    with pytest.raises(RefusedError, match="requires a login"):
        resolve(f"127.0.0.1:{planted.port}")
    assert service.received
    for request in (*service.received, *planted.received):
        assert LOGIN not in request.text
        assert "good" not in request.headers.get("Authorization", "")


def test_the_scope_is_the_repositorys_content_whatever_the_challenge_says(servers: Servers, home: Path) -> None:
    service = servers.start(gives_token)
    realm = f"http://127.0.0.1:{service.port}/token?scope=repository:all:push&account=you&keep=1"
    rest = ',service="here",scope="repository:mine/private:pull,push,delete"'
    host = f"127.0.0.1:{servers.start(registry(realm, rest=rest)).port}"
    keep_login(home, host)
    resolve(host)
    query = parse_qs(urlsplit(service.received[0].path).query)
    assert query == {"scope": ["repository:some/image:pull"], "service": ["here"], "keep": ["1"]}


@pytest.mark.parametrize("refresh", [False, True], ids=["password", "refresh token"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_token_service_that_redirects_passes_no_login_on(
    servers: Servers, home: Path, code: int, refresh: bool
) -> None:
    stranger = servers.start(gives_token)
    target = f"http://127.0.0.1:{stranger.port}/token"  # even the same host: the registry did not name it
    service = servers.start(lambda _: Answer(code, {"Location": target}))
    host = servers.asking(service)
    keep_login(home, host, refresh=refresh)
    with pytest.raises(RefusedError, match="redirects those who log in"):
        resolve(host)
    assert service.received
    assert not stranger.received


def test_a_registrys_redirect_carries_no_login_to_others(servers: Servers, home: Path) -> None:
    last = servers.start(lambda _: MANIFEST)
    middle = servers.start(lambda _: Answer(302, {"Location": f"http://127.0.0.1:{last.port}/x"}))

    def first(request: Received) -> Answer:
        if request.headers.get("Authorization") != f"Basic {LOGIN}":
            return Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})
        return Answer(307, {"Location": f"http://some:one@localhost:{middle.port}/x"})

    host = f"127.0.0.1:{servers.start(first).port}"
    keep_login(home, host)
    resolve(host)
    assert middle.received
    assert last.received
    for request in (*middle.received, *last.received):
        assert "Authorization" not in request.headers


def test_the_target_of_a_redirect_asks_for_a_login_in_vain(servers: Servers, home: Path) -> None:
    service = servers.start(gives_token_to_logins)
    target = servers.start(registry(f"http://127.0.0.1:{service.port}/token", kind="Bearer"))
    begin = servers.start(lambda _: Answer(307, {"Location": f"http://localhost:{target.port}/x"}))
    host = f"127.0.0.1:{begin.port}"
    keep_login(home, host)
    with pytest.raises(RefusedError, match="denies the login"):
        resolve(host)
    assert target.received
    assert not service.received
    assert LOGIN not in "".join(request.text for request in (*target.received, *begin.received))


@pytest.mark.parametrize("realm", ["", "not encrypted"], ids=["a manifest", "a token"])
def test_no_redirect_gives_up_encryption(
    servers: Servers, home: Path, monkeypatch: pytest.MonkeyPatch, realm: str
) -> None:
    trusted = certificate(home)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
    plain = servers.start(gives_token)
    sends_on = servers.start(lambda _: Answer(302, {"Location": f"http://127.0.0.1:{plain.port}/x"}), trusted)
    asks = registry(f"https://127.0.0.1:{sends_on.port}/token")
    begin = servers.start(asks, trusted) if realm else sends_on
    with pytest.raises(RefusedError, match=f"redirects to 127.0.0.1:{plain.port}, which is not encrypted"):
        resolve(f"127.0.0.1:{begin.port}")
    assert not plain.received


def test_pages_of_a_listing_are_not_followed(servers: Servers, home: Path) -> None:
    stranger = servers.start(lambda _: Answer(body=b'{"tags": ["from-elsewhere"]}'))

    def reply(request: Received) -> Answer:
        if request.headers.get("Authorization") != f"Basic {LOGIN}":
            return Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})
        if "tags/list" not in request.path:
            return Answer(404)
        link = f'<http://localhost:{stranger.port}/v2/some/image/tags/list?last=a>; rel="next"'
        return Answer(headers={"Link": link}, body=b'{"tags": ["2"]}')

    host = f"127.0.0.1:{servers.start(reply).port}"
    keep_login(home, host)
    with pytest.raises(RefusedError, match="has no such image"):
        resolve(host)
    assert not stranger.received


# What a realm may be, and whose it is.


@pytest.mark.parametrize(
    ("realm", "host"),
    [
        ("https://auth.docker.io/token", "auth.docker.io"),
        ("https://R.IO:443/Token", "r.io"),
        ("HTTPS://r.io:8443", "r.io:8443"),
        ("https://r.io./token", "r.io."),
        ("https://r.io@evil.org/token", None),
        ("https://r.io:me@evil.org/token", None),
        ("https://evil.org\\@r.io/token", None),
        ("https://evil.org/\\@r.io", None),
        ("https://r.io#@evil.org/", None),
        ("https://evil.org?.r.io/token", None),
        ("https://r.ıo/token", None),
        ("https://r.io /token", None),
        ("https:r.io/token", None),
        ("//r.io/token", None),
        ("ftp://r.io/token", None),
        ("file:///etc/passwd", None),
        ("https://r.io:port/", None),
        ("https://r.io%2eevil.org/", None),
        ("", None),
    ],
)
def test_a_realm_is_read_in_one_way_or_not_at_all(realm: str, host: str | None) -> None:
    service = credentials.parse_realm(realm)
    assert (service.host if service else None) == host


@pytest.mark.parametrize(
    ("service", "registry", "belongs"),
    [
        ("https://r.io/token", "r.io", True),
        ("https://R.io:8443/token", "r.IO:5000", True),
        ("https://auth.docker.io/token", "docker.io", True),
        ("https://authn.nvidia.com/token", "nvcr.io", True),
        ("https://auth.docker.io/token", "evil.org", False),
        ("https://authn.nvidia.com/token", "nvcr.io.evil.org", False),
        ("https://authn.nvidia.com:8443/token", "nvcr.io", False),
        ("https://r.io.evil.org/token", "r.io", False),
        ("https://r.io./token", "r.io", False),
        ("https://xn--r-0fa.io/token", "r.io", False),
        ("https://auth.r.io/token", "r.io", False),
    ],
)
def test_whose_a_token_service_is(service: str, registry: str, belongs: bool) -> None:
    parsed = credentials.parse_realm(service)
    assert parsed is not None
    assert credentials.belongs(parsed, registry) == belongs


def test_the_users_configuration_names_a_token_service(home: Path) -> None:
    service = credentials.parse_realm("https://Auth.example.org/token")
    assert service is not None
    config = home / ".config/gpu-runner/config.yaml"
    config.parent.mkdir(parents=True)
    for named, belongs in (("auth.example.org:443", True), ("other.example.org", False), ("auth.example.org:1", False)):
        config.write_text(f"registries: {{r.example.org: {{token_service: {named}}}}}")
        assert credentials.belongs(service, "R.example.org") == belongs
        assert not credentials.belongs(service, "q.example.org")
    config.write_text("registries: {r.example.org: {service: x}}")
    with pytest.raises(UsageError, match="service"):
        credentials.belongs(service, "r.example.org")


@pytest.mark.parametrize("realm", ["http://example.org/token", "http://127.0.0.1:9/token"])
def test_a_registry_elsewhere_names_no_service_without_encryption(realm: str) -> None:
    connection = Connection(references.parse("registry.example.org/x/y:1"), lambda _: None)
    with pytest.raises(RefusedError, match="not encrypted"):
        connection._token_service(realm)


@pytest.mark.parametrize(
    "body",
    [b'{"token": "a\\r\\nb"}', b'{"token": "' + b"a" * (1 << 20) + b'"}', b'{"token": ' + b"[" * 100_000, b"[]"],
    ids=["line break", "endless", "nested", "list"],
)
def test_an_answer_that_is_no_token_is_none(servers: Servers, home: Path, body: bytes) -> None:
    service = servers.start(lambda _: Answer(body=body))
    host = f"127.0.0.1:{servers.start(registry(f'http://127.0.0.1:{service.port}/t')).port}"
    with pytest.raises(InfrastructureError, match="gave no token"):
        resolve(host)


# Names that say no registry.


@pytest.mark.parametrize("name", ["gpu-runner/horovod-pytorch:25.02-py3", "docker.io/gpu-runner/x:1"])
def test_the_names_of_our_images_are_never_looked_up_at_the_hub(name: str) -> None:
    with pytest.raises(RefusedError, match="could be anybody's"):
        Connection(references.parse(name), lambda _: None)
