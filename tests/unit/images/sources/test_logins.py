"""Logins are found where Docker, Podman and Enroot keep them, and go to their registry and its token service alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from runner.core import loopback
from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.images import reference as references
from runner.images.sources import credentials, registry_http
from runner.images.sources.credentials import Login
from runner.images.sources.registry import Registry
from runner.images.sources.registry_http import Connection
from tests.support.http_servers import Answer, Received, Server, certificate, serving
from tests.support.shell_files import stand_in

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


def auths(host: str, user: str = "me") -> dict[str, object]:
    return {"auths": {host: {"auth": base64.b64encode(f"{user}:{SECRET}".encode()).decode()}}}


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
    assert credentials.find("nvcr.io") is None
    path = write(home / place, auths("nvcr.io", "$oauthtoken"))
    if variable:
        monkeypatch.setenv(variable, str(path.parent))
    login = credentials.find("nvcr.io")
    assert login == Login(str(path), "$oauthtoken", SECRET)
    assert SECRET not in repr(login) + repr(Login("file", token=SECRET))
    assert credentials.find("other.io") is None
    for name in ("https://index.docker.io/v1/", "docker.io"):  # the hub has several
        write(path, auths(name))
        assert credentials.find("docker.io") == Login(str(path), "me", SECRET)


@pytest.mark.parametrize(
    ("variable", "named", "file"),
    [
        ("DOCKER_CONFIG", "here", "here/config.json"),
        ("REGISTRY_AUTH_FILE", "auth.json", "auth.json"),
        ("XDG_CONFIG_HOME", "here", "here/containers/auth.json"),
        ("XDG_RUNTIME_DIR", "here", "here/containers/auth.json"),
        ("ENROOT_CONFIG_PATH", "here", "here/.credentials"),
    ],
)
def test_a_relative_path_does_not_count(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, named: str, file: str
) -> None:
    """The working directory may be another user's."""
    is_enroots = file.endswith(".credentials")
    write(home / file, f"machine r.io login me password {SECRET}\n" if is_enroots else auths("r.io"))
    monkeypatch.chdir(home)
    monkeypatch.setenv(variable, named)
    assert credentials.find("r.io") is None
    monkeypatch.setenv(variable, str(home / named))
    assert credentials.find("r.io") is not None


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_credential_helper_is_run(home: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    answer = json.dumps({"Username": "<token>", "Secret": SECRET})
    stand_in(home, "docker-credential-test", f"read host\necho \"$1 $host\" > {home}/asked\necho '{answer}'")
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    path = write(home / ".docker/config.json", {key: {"r.io:5000": "test"} if key == "credHelpers" else "test"})
    assert credentials.find("r.io:5000") == Login(str(path), token=SECRET)
    assert (home / "asked").read_text() == "get r.io:5000\n"


@pytest.mark.filterwarnings("error")
def test_a_missing_credential_helper_is_reported(home: Path) -> None:
    path = write(home / ".docker/config.json", {"credsStore": "nowhere"})
    with pytest.raises(RefusedError, match="docker-credential-nowhere") as caught:
        credentials.find("r.io")
    assert (caught.value.where, caught.value.fix) == (str(path), "log in again: docker login r.io")


@pytest.mark.parametrize(
    ("config", "helper", "says"),
    [
        ("[1]", "", "Expected `object`, got `array`"),
        ('{"auths": {"r.io": {"au', "", "truncated"),
        ('{"auths": [1]}', "", "got `array` - at `\\$.auths`"),
        ('{"auths": {"r.io": 1}}', "", "Invalid configuration for registry r.io"),
        ('{"auths": {"r.io": {"auth": 5}}}', "", "not 'int'"),
        ('{"credHelpers": ["a"]}', "", "got `array`"),
        ('{"credsStore": "test"}', "exec sleep 60", "docker-credential-test did not answer within 0.5 s"),
        ('{"credsStore": "test"}', "echo '{}'", "required field `Username`"),
        ('{"credsStore": "test"}', "echo 'no keyring'; exit 1", "exit code 1: no keyring"),
        ('{"credsStore": "test"}', f'echo \'{{"Secret": "{SECRET}"}}\'; exit 1', "exit code 1"),
        ('{"credsStore": "test", "auths": null}', "echo 'credentials not found in native keychain'; exit 1", ""),
        ("", "", ""),
        ("{}", "", ""),
    ],
)
def test_what_docker_has_not_written_is_refused_in_words(
    home: Path, monkeypatch: pytest.MonkeyPatch, config: str, helper: str, says: str
) -> None:
    monkeypatch.setattr(credentials, "_HELPER_S", 0.5)
    stand_in(home, "docker-credential-test", helper)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    path = write(home / ".docker/config.json", config)
    with pytest.raises(RefusedError, match=says) if says else nullcontext() as caught:
        assert credentials.find("r.io") is None
    if caught is not None:
        assert (caught.value.where, caught.value.fix) == (str(path), "log in again: docker login r.io")
        assert SECRET not in str(caught.value.what)


def test_enroots_file_by_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Netrc has no ports: what listens on another one may be another user's."""
    text = f"""# machine nvcr.io login wrong password wrong
machine nvcr.io login $oauthtoken password {SECRET}
machine authn.nvidia.com   login $oauthtoken   password two words\t
machine registry-1.docker.io login me password $FROM_ELSEWHERE
machine r.io login me password ${{FROM_ELSEWHERE}}
machine r.io:5000 login you password two
machine g.io login oauth2accesstoken password $(gcloud auth print-access-token)
"""
    path = write(home / ".config/enroot/.credentials", text)
    monkeypatch.setenv("FROM_ELSEWHERE", "there")
    logins = {
        "nvcr.io": Login(str(path), "$oauthtoken", SECRET),
        "authn.nvidia.com": Login(str(path), "$oauthtoken", "two words"),
        "docker.io": Login(str(path), "me", "there"),
        "r.io": Login(str(path), "me", "there"),
        "r.io:443": Login(str(path), "me", "there"),
        "r.io:5000": Login(str(path), "you", "two"),
        "r.io:5001": None,
    }
    assert {host: credentials.find(host) for host in logins} == logins
    with pytest.raises(RefusedError, match="is a command, and commands of files are not run here"):
        credentials.find("g.io")
    monkeypatch.delenv("FROM_ELSEWHERE")
    with pytest.raises(RefusedError, match="names a variable that is not set"):
        credentials.find("r.io")
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(home / "nowhere"))
    assert credentials.find("nvcr.io") is None


def test_a_registry_without_a_login_says_exactly_what_to_do() -> None:
    other = registry_http.login_needed("r.io:5001", "x", None, 401)
    assert "a line `machine r.io:5001 login ...` in Enroot's .credentials" in other.fix
    ngc = registry_http.login_needed("nvcr.io", "nvidia/pytorch", None, 401)
    assert "requires a login for nvidia/pytorch (401), and there is none here" in ngc.what
    for words in (
        "docker login nvcr.io",
        "$oauthtoken",
        "machine authn.nvidia.com",
        "https://org.ngc.nvidia.com/setup",
    ):
        assert words in ngc.fix


def test_only_this_machine_itself_is_spoken_to_without_tls() -> None:
    here = ("localhost:5000", "127.0.0.1", "127.8.9.1:80", "[::1]:5000")
    elsewhere = ("localhost.example.org", "10.0.0.1:5000", "nvcr.io", "127.0.0.1.nip.io")
    assert [netloc for netloc in (*here, *elsewhere) if loopback.is_loopback(netloc)] == [*here]


def test_no_other_machine_gets_a_request_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def request(_session: object, _method: str, url: str, **_: object) -> object:
        asked.append(url)
        raise requests.exceptions.SSLError("wrong version number")

    monkeypatch.setattr(registry_http._Session, "request", request)
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        resolve("registry.example.org:5000")
    assert asked and all(url.startswith("https://registry.example.org:5000/") for url in asked)


def test_a_login_is_read_only_when_a_registry_asks_for_it(servers: Servers, home: Path) -> None:
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text('{"auths": {"r.io": {"au')
    assert resolve(servers.host(lambda _: MANIFEST)) == "sha256:" + "1" * 64
    with pytest.raises(RefusedError, match="truncated"):
        resolve(servers.host(lambda _: WANTS_LOGIN))


def test_how_long_a_registry_asks_to_wait() -> None:
    assert registry_http.retry_after("7") == 7.0
    assert registry_http.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert (registry_http.retry_after("Fri, 31 Dec 2100 23:59:59 GMT") or 0) > 1e9
    assert {registry_http.retry_after(nothing) for nothing in ("", "soon", "-5", "9" * 12)} == {None}


LOGIN = base64.b64encode(f"me:{SECRET}".encode()).decode()
MANIFEST = Answer(headers={"Docker-Content-Digest": "sha256:" + "1" * 64})
WANTS_LOGIN = Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})
BY_PASSWORD_OR_TOKEN = pytest.mark.parametrize("refresh", [False, True], ids=["password", "refresh token"])
Reply = Callable[[Received], Answer]


def keep_login(home: Path, host: str, *, refresh: bool = False) -> None:
    """What `docker login` keeps: a password, or a refresh token."""
    entry = {"auth": base64.b64encode(b"<token>:").decode(), "identitytoken": SECRET} if refresh else {"auth": LOGIN}
    write(home / ".docker/config.json", {"auths": {host: entry}})


def registry(realm: str, rest: str = "") -> Reply:
    """A registry that wants a token of that realm."""

    def reply(request: Received) -> Answer:
        if request.headers.get("Authorization") == "Bearer good":
            return MANIFEST
        return Answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}"{rest}'})

    return reply


def redirect(target: str, code: int = 307) -> Reply:
    return lambda _: Answer(code, {"Location": target})


def gives_token(request: Received) -> Answer:
    return Answer(body=b'{"token": "good"}')


def gives_token_to_logins(request: Received) -> Answer:
    return gives_token(request) if request.headers.get("Authorization") or shows_login([request]) else Answer(401)


def shows_login(requests: Sequence[Received]) -> bool:
    return any(SECRET in request.text or LOGIN in request.text for request in requests)


def resolve(host: str, name: str = "some/image") -> str:
    return Registry(references.parse(f"{host}/{name}:1"), lambda _: None).resolve("1")


class Servers(ExitStack):
    """Servers that end with the test; the first answer is known only once others have their ports."""

    def start(self, reply: Reply, tls: Path | None = None) -> Server:
        return self.enter_context(serving(reply, tls))

    def host(self, reply: Reply) -> str:
        return f"127.0.0.1:{self.start(reply).port}"

    def asking(self, service: Server, name: str = "127.0.0.1") -> str:
        """A registry, as its host and port, that wants a token of the service, which it calls so."""
        return self.host(registry(f"http://{name}:{service.port}/token"))


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as started:
        yield started


@BY_PASSWORD_OR_TOKEN
def test_the_registrys_own_token_service_gets_the_login(servers: Servers, home: Path, refresh: bool) -> None:
    service = servers.start(gives_token_to_logins)
    host = servers.asking(service)
    keep_login(home, host, refresh=refresh)
    assert resolve(host) == "sha256:" + "1" * 64
    (request,) = service.received
    assert request.method == ("POST" if refresh else "GET")
    assert (SECRET if refresh else LOGIN) in request.text


@BY_PASSWORD_OR_TOKEN
def test_another_hosts_token_service_gets_none_unless_the_user_names_it(
    servers: Servers, home: Path, refresh: bool
) -> None:
    stranger = servers.start(gives_token_to_logins)
    host = servers.asking(stranger, "localhost")
    keep_login(home, host, refresh=refresh)
    with pytest.raises(RefusedError, match=f"names localhost:{stranger.port} to send it to") as caught:
        resolve(host)
    assert stranger.received, "it may give a token to anybody"
    assert not shows_login(stranger.received)
    assert SECRET not in str(caught.value)
    # The refusal prints the very lines that allow it.
    config, line = caught.value.fix.split("write into ")[1].split(": ", 1)
    write(Path(config), line)
    assert resolve(host) == "sha256:" + "1" * 64
    assert shows_login(stranger.received)


def test_what_is_public_is_had_by_a_strangers_token_without_the_login(servers: Servers, home: Path) -> None:
    stranger = servers.start(gives_token)
    host = servers.asking(stranger, "localhost")
    keep_login(home, host)
    assert resolve(host) == "sha256:" + "1" * 64
    assert not shows_login(stranger.received)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_login_kept_for_the_token_service_itself_is_not_for_every_registry(
    servers: Servers, home: Path, name: str
) -> None:
    """On a login node each port may be another user's: this one would have a token for what only that one shows."""
    service = servers.start(gives_token_to_logins)
    planted = servers.start(registry(f"http://{name}:{service.port}/token"))
    keep_login(home, f"{name}:{service.port}")
    with pytest.raises(RefusedError, match="requires a login"):
        resolve(f"127.0.0.1:{planted.port}")
    assert service.received
    assert not shows_login([*service.received, *planted.received])
    assert not [request for request in planted.received if "good" in request.headers.get("Authorization", "")]


def test_the_scope_is_the_repositorys_content_whatever_the_challenge_says(servers: Servers, home: Path) -> None:
    service = servers.start(gives_token)
    realm = f"http://127.0.0.1:{service.port}/token?scope=repository:all:push&account=you&keep=1"
    host = servers.host(registry(realm, ',service="here",scope="repository:mine/private:pull,push,delete"'))
    keep_login(home, host)
    resolve(host)
    query = parse_qs(urlsplit(service.received[0].path).query)
    assert query == {"scope": ["repository:some/image:pull"], "service": ["here"], "keep": ["1"]}


@BY_PASSWORD_OR_TOKEN
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_token_service_that_redirects_passes_no_login_on(
    servers: Servers, home: Path, code: int, refresh: bool
) -> None:
    stranger = servers.start(gives_token)  # even the same host: the registry did not name it
    service = servers.start(redirect(f"http://127.0.0.1:{stranger.port}/token", code))
    host = servers.asking(service)
    keep_login(home, host, refresh=refresh)
    with pytest.raises(RefusedError, match="redirects those who log in"):
        resolve(host)
    assert service.received
    assert not stranger.received


def test_a_registrys_redirect_carries_no_login_to_others(servers: Servers, home: Path) -> None:
    last = servers.start(lambda _: MANIFEST)
    middle = servers.start(redirect(f"http://127.0.0.1:{last.port}/x", 302))
    onward = redirect(f"http://some:one@localhost:{middle.port}/x")

    def first(request: Received) -> Answer:
        return onward(request) if request.headers.get("Authorization") == f"Basic {LOGIN}" else WANTS_LOGIN

    host = servers.host(first)
    keep_login(home, host)
    resolve(host)
    assert middle.received
    assert last.received
    assert not [one for one in (*middle.received, *last.received) if "Authorization" in one.headers]


def test_the_target_of_a_redirect_asks_for_a_login_in_vain(servers: Servers, home: Path) -> None:
    service = servers.start(gives_token_to_logins)
    target = servers.start(registry(f"http://127.0.0.1:{service.port}/token"))
    begin = servers.start(redirect(f"http://localhost:{target.port}/x"))
    host = f"127.0.0.1:{begin.port}"
    keep_login(home, host)
    with pytest.raises(RefusedError, match="denies the login"):
        resolve(host)
    assert target.received
    assert not service.received
    assert not shows_login([*target.received, *begin.received])


@pytest.mark.parametrize("of_token", [False, True], ids=["a manifest", "a token"])
def test_no_redirect_gives_up_encryption(
    servers: Servers, home: Path, monkeypatch: pytest.MonkeyPatch, of_token: bool
) -> None:
    trusted = certificate(home)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
    plain = servers.start(gives_token)
    begin = servers.start(redirect(f"http://127.0.0.1:{plain.port}/x"), trusted)
    if of_token:
        begin = servers.start(registry(f"https://127.0.0.1:{begin.port}/token"), trusted)
    with pytest.raises(RefusedError, match=f"redirects to 127.0.0.1:{plain.port}, which is not encrypted"):
        resolve(f"127.0.0.1:{begin.port}")
    assert not plain.received


def test_pages_of_a_listing_are_not_followed(servers: Servers, home: Path) -> None:
    stranger = servers.start(lambda _: Answer(body=b'{"tags": ["from-elsewhere"]}'))

    def reply(request: Received) -> Answer:
        if request.headers.get("Authorization") != f"Basic {LOGIN}":
            return WANTS_LOGIN
        link = f'<http://localhost:{stranger.port}/v2/some/image/tags/list?last=a>; rel="next"'
        listed = Answer(headers={"Link": link}, body=b'{"tags": ["2"]}')
        return listed if "tags/list" in request.path else Answer(404)

    host = servers.host(reply)
    keep_login(home, host)
    with pytest.raises(RefusedError, match="has no such image"):
        resolve(host)
    assert not stranger.received


@pytest.mark.parametrize(
    "body",
    [b'{"token": "a\\r\\nb"}', b'{"token": "' + b"a" * (1 << 20) + b'"}', b'{"token": ' + b"[" * 100_000, b"[]"],
    ids=["line break", "endless", "nested", "list"],
)
def test_an_answer_that_is_no_token_is_none(servers: Servers, home: Path, body: bytes) -> None:
    host = servers.asking(servers.start(lambda _: Answer(body=body)))
    with pytest.raises(InfrastructureError, match="gave no token"):
        resolve(host)


@pytest.mark.parametrize(
    ("realm", "host"),
    [
        ("https://auth.docker.io/token", "auth.docker.io"),
        ("https://R.IO:443/Token", "r.io"),
        ("HTTPS://r.io:8443", "r.io:8443"),
        ("https://r.io./token", "r.io."),
        *((realm, None) for realm in (
            "https://r.io@evil.org/token", "https://r.io:me@evil.org/token", "https://evil.org\\@r.io/token",
            "https://evil.org/\\@r.io", "https://r.io#@evil.org/", "https://evil.org?.r.io/token",
            "https://r.ıo/token", "https://r.io /token", "https:r.io/token", "//r.io/token", "ftp://r.io/token",
            "file:///etc/passwd", "https://r.io:port/", "https://r.io%2eevil.org/", "",
        )),
    ],
)  # fmt: skip
def test_a_realm_is_read_in_one_way_or_not_at_all(realm: str, host: str | None) -> None:
    service = credentials.parse_realm(realm)
    assert (service.host if service else None) == host


@pytest.mark.parametrize(
    ("realm", "registry", "belongs"),
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
        # As the user's configuration names them.
        ("https://Auth.example.org/token", "A.example.org", True),
        ("https://auth.example.org/token", "b.example.org", False),
        ("https://auth.example.org/token", "c.example.org", False),
        ("https://auth.example.org/token", "d.example.org", False),
    ],
)
def test_whose_a_token_service_is(home: Path, realm: str, registry: str, belongs: bool) -> None:
    config = home / ".config/gpu-runner/config.yaml"
    named = {"a": "auth.example.org:443", "b": "other.example.org", "c": "auth.example.org:1"}
    registries = {f"{name}.example.org": {"token_service": service} for name, service in named.items()}
    write(config, {"registries": registries})
    service = credentials.parse_realm(realm)
    assert service is not None
    assert credentials.belongs(service, registry) == belongs
    write(config, "registries: {r.example.org: {service: x}}")
    with pytest.raises(UsageError, match="service"):
        credentials.belongs(service, "r.example.org")


@pytest.mark.parametrize("realm", ["http://example.org/token", "http://127.0.0.1:9/token"])
def test_a_registry_elsewhere_names_no_service_without_encryption(realm: str) -> None:
    connection = Connection(references.parse("registry.example.org/x/y:1"), lambda _: None)
    with pytest.raises(RefusedError, match="not encrypted"):
        connection._token_service(realm)


@pytest.mark.parametrize("name", ["gpu-runner/horovod-pytorch:25.02-py3", "docker.io/gpu-runner/x:1"])
def test_the_names_of_our_images_are_never_looked_up_at_the_hub(name: str) -> None:
    with pytest.raises(RefusedError, match="could be anybody's"):
        Connection(references.parse(name), lambda _: None)
