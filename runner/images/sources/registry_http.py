"""Requests to one repository of a registry: tried again, delayed and logged in as the registry asks.

HTTP through ``requests``; Docker's token authentication and RFC 7235. A login is sent over TLS (except on this
machine) to the registry and to the token service that belongs to it (``credentials``), and never to the target of
a redirect.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.utils import parse_dict_header

from runner import __version__
from runner.core import paths
from runner.core.errors import InfrastructureError, RefusedError, RunnerError
from runner.core.invocation import PROGRAM
from runner.core.loopback import ensure_own_port, host_of, is_loopback
from runner.images.reference import OURS, Reference
from runner.images.sources import credentials
from runner.images.sources.credentials import Login, TokenService

HUB = "docker.io"
ATTEMPTS = 6
FIRST_PAUSE_S = 0.5  # doubled with every further attempt
_HUB_MACHINE = "registry-1.docker.io"
_CONNECT_S, _READ_S = 20.0, 30.0
_LONGEST_ANSWER = 1 << 20  # bytes of a token, or a list of tags
_PIECE = 1 << 20
LEAST_BYTES, _LEAST_S = 60_000, 60.0  # an answer that brings less in that time is not waited for
_LONGEST_PAUSE_S = 300.0  # a registry that asks for more is not waited for
_TAKEN = frozenset((
    HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
))  # fmt: skip
_TRANSIENT = frozenset((
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT,
))  # fmt: skip
_NOT_THERE = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
_NGC_FIX = (
    "make an API key at https://org.ngc.nvidia.com/setup/api-keys, then either `docker login nvcr.io` (user name:"
    " $oauthtoken as it stands, password: the key), or for Enroot write into ~/.config/enroot/.credentials, readable"
    " by you alone, the two lines `machine nvcr.io login $oauthtoken password KEY` and"
    " `machine authn.nvidia.com login $oauthtoken password KEY`"
)


_REPORT = "report this to the registry's operator"


class Connection:
    """One repository in one registry; threads may share it. RefusedError: an image of ours, at Docker's hub.

    Attributes:
        host: as people write it. repository: with the hub's ``library/`` where that is meant.
        say: receives a line for each pause and retry. stop: once set, no thread goes on.
    """

    def __init__(self, reference: Reference, say: Callable[[str], None]) -> None:
        self.host = reference.registry or HUB
        self.repository = reference.repository
        if self.host == HUB and "/" not in self.repository:
            self.repository = f"library/{self.repository}"
        if self.host == HUB and self.repository.startswith(OURS):
            raise RefusedError(
                f"{self.repository} is the name of an image built here, and at {HUB} it could be anybody's",
                where=str(reference),
                fix=f"build it ({PROGRAM} build pytorch), or name the registry that it was pushed to",
            )
        self.say = say
        self.stop = threading.Event()
        self._machine = _HUB_MACHINE if self.host == HUB else self.host
        self._scheme = ""
        self._authorization = ""
        self._withheld: TokenService | None = None  # what asked for a login that was not kept for it
        self._lock = threading.Lock()
        self._session = _Session()
        self._session.headers["User-Agent"] = f"gpu-runner/{__version__}"
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    def get(
        self, path: str, *, method: str = "GET", accept: str = "*/*", headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        """An answer with 200, 206, 404 or 416, its body not read yet; the caller closes it. RefusedError: a login is
        needed, or the kept one has no access. InfrastructureError: there is no such answer after several attempts.
        """
        url = f"{self._base()}/v2/{self.repository}/{path}"
        all_headers = {"Accept": accept, "Accept-Encoding": "identity", **(headers or {})}
        logged_in = False
        attempt = 0
        while True:
            self.heed_stop()
            attempt += 1
            shown = self._authorization
            pause = FIRST_PAUSE_S * 2 ** (attempt - 1)
            try:
                response = self._request(method, url, shown, headers=all_headers, stream=True)
            except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
                # A machine that is not there seldom appears within seconds.
                attempts = 2 if isinstance(_innermost(error), _NOT_THERE) else ATTEMPTS
                if isinstance(error, requests.exceptions.SSLError) or attempt >= attempts:
                    raise self._no_answer(error) from error
                self.pause(pause)
                continue
            if response.status_code in _TAKEN:
                return response
            with response:
                own = urlsplit(response.url).netloc == urlsplit(url).netloc
                if response.status_code == HTTPStatus.UNAUTHORIZED and own and not logged_in:
                    self._log_in(response.headers.get("WWW-Authenticate", ""), shown)
                    logged_in = True
                elif response.status_code in _TRANSIENT and attempt < ATTEMPTS:
                    self.pause(self._retry_pause(response, pause))
                else:
                    raise self._declined(response, path)

    def pause(self, seconds: float) -> None:
        """Wait, unless all is to stop."""
        self.stop.wait(seconds)
        self.heed_stop()

    def heed_stop(self) -> None:
        """End this thread's work where all is to stop."""
        if self.stop.is_set():
            raise InfrastructureError("stopped, as another download failed")

    def where(self, name: str = "") -> str:
        """The repository, with a tag or a digest, for messages."""
        separator = "@" if name.startswith("sha256:") else ":" if name else ""
        return f"{self.host}/{self.repository}{separator}{name}"

    def _request(self, method: str, url: str, authorization: str, **others: Any) -> requests.Response:
        scheme, netloc = urlsplit(url)[:2]
        is_open = scheme == "http" and is_loopback(netloc)

        def authorized(request: requests.PreparedRequest) -> requests.PreparedRequest:
            if is_open:  # who took a connection may listen no more when it is used again
                request.headers["Connection"] = "close"
            if authorization:
                request.headers["Authorization"] = authorization
            return request

        # Added to the environment's proxies: none on the way to this machine itself.
        proxies = {"no_proxy": host_of(netloc)} if is_loopback(netloc) else {}
        timeout = (_CONNECT_S, _READ_S)
        return self._session.request(method, url, auth=authorized, timeout=timeout, proxies=proxies, **others)

    def _base(self) -> str:
        """``https://HOST``; where that is this machine itself, ``http://HOST`` if it does not speak TLS."""
        with self._lock:
            if not self._scheme:
                self._scheme = "https"
                if is_loopback(self._machine):
                    try:
                        self._request("HEAD", f"https://{self._machine}/v2/", "").close()
                    except requests.exceptions.SSLError as error:
                        self._scheme = "https" if _of_certificates(error) else "http"
                    except requests.exceptions.RequestException:
                        pass  # the request that follows reports it
            return f"{self._scheme}://{self._machine}"

    def _log_in(self, challenge: str, refused: str) -> None:
        """Answer a challenge with a login, or with a token that is fetched by it; one thread does it for all."""
        with self._lock:
            if self._authorization != refused:
                return
            kind, _, rest = challenge.partition(" ")
            parameters = {name.lower(): value or "" for name, value in parse_dict_header(rest).items()}  # type: ignore[no-untyped-call]
            login = credentials.find(self.host)
            if kind.lower() == "basic":
                if login is None or not login.user:
                    raise self._needs_login(login)
                self._authorization = _basic(login)
            elif kind.lower() == "bearer" and parameters.get("realm"):
                self._authorization = f"Bearer {self._token(parameters, login)}"
            else:
                what = f"{self.host} asks for a login with an unsupported scheme: {kind or 'none named'}"
                raise InfrastructureError(what, where=self.where())

    def _token(self, parameters: Mapping[str, str], login: Login | None) -> str:
        service = self._token_service(parameters["realm"])
        if credentials.belongs(service, self.host):
            if login is None and credentials.is_named(service, self.host):
                login = credentials.find(service.host)
        elif login is not None:
            self._withheld = service
            login = None
        scope = f"repository:{self.repository}:pull"  # whatever the challenge says: no more is needed
        query = {"service": parameters.get("service", ""), "scope": scope}
        try:
            if login is not None and login.token:
                form = {**query, "grant_type": "refresh_token", "refresh_token": login.token, "client_id": "gpu-runner"}
                response = self._request("POST", service.url, "", data=form, allow_redirects=False, stream=True)
            elif login is not None:
                shown = _basic(login)
                response = self._request("GET", service.url, shown, params=query, allow_redirects=False, stream=True)
            else:
                response = self._request("GET", service.url, "", params=query, stream=True)
        except requests.exceptions.RequestException as error:
            raise self._no_answer(error, service.host) from error
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self._needs_login(login, response.status_code)
        if response.is_redirect:
            what = f"{service.host} redirects those who log in, and a login is sent to no other address"
            raise RefusedError(what, where=self.where(), fix=_REPORT)
        try:
            answer = short_json(response) if response.ok else {}
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InfrastructureError(
                f"{service.host} gave no token for {self.host} ({response.status_code})", where=self.where()
            )
        return token

    def _token_service(self, realm: str) -> TokenService:
        service = credentials.parse_realm(realm)
        if service is None:
            what = f"{self.host} asks for logins to be sent to {realm!r}, which is no plain address"
            raise RefusedError(what, where=self.where(), fix=_REPORT)
        if not service.encrypted and not (is_loopback(service.host) and is_loopback(self._machine)):
            what = f"{self.host} asks for logins to be sent to {realm}, which is not encrypted"
            raise RefusedError(what, where=self.where(), fix=_REPORT)
        return service

    def _retry_pause(self, response: requests.Response, otherwise: float) -> float:
        """Seconds until the next attempt: as the registry says (RFC 9110, Retry-After), or ``otherwise``."""
        requested = retry_after(response.headers.get("Retry-After", ""))
        seconds = otherwise if requested is None else requested
        if seconds > _LONGEST_PAUSE_S:
            raise InfrastructureError(
                f"{self.host} takes no more requests for {seconds:.0f} s",
                where=self.where(),
                fix=f"try again then; a login often has a higher limit: docker login {self.host}",
            )
        self.say(f"{self.host} answered {response.status_code}: trying again in {seconds:.1f} s")
        return seconds

    def _declined(self, response: requests.Response, path: str) -> RunnerError:
        code = response.status_code
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED):
            return self._needs_login(credentials.find(self.host), code)
        return InfrastructureError(
            f"{self.host} answered {code} {response.reason}",
            where=self.where(path.rpartition("/")[2]),
            fix="try again later" if code in _TRANSIENT else "",
        )

    def _needs_login(self, used: Login | None = None, code: int = HTTPStatus.UNAUTHORIZED) -> RefusedError:
        service = self._withheld
        if service is None:
            return login_needed(self.host, self.repository, used, code)
        return RefusedError(
            f"{self.host} requires a login for {self.repository} ({code}) and names {service.host} to send it to; your"
            f" login was kept for {self.host} and is sent to no other host",
            where=self.where(),
            fix=f"if {service.host} is the registry's own token service, write into {paths.config_file()}:"
            f" {credentials.configuration(service, self.host)}",
        )

    def _no_answer(self, error: Exception, machine: str = "") -> InfrastructureError:
        what = "cannot be reached"
        fix = "check name, network and HTTPS_PROXY; without TLS only a registry on this machine is used"
        if _of_certificates(error):
            what = "has a certificate that cannot be verified"
            fix = (
                "if its CA is your centre's own, name a file in which it is: export REQUESTS_CA_BUNDLE=FILE.pem, often"
                " /etc/ssl/certs/ca-certificates.crt or /etc/pki/tls/certs/ca-bundle.crt"
            )
        return InfrastructureError(f"{machine or self._machine} {what}: {reason(error)}", where=self.where(), fix=fix)


def login_needed(host: str, repository: str, used: Login | None, code: int) -> RefusedError:
    """The refusal of what a registry shows only to those who log in; ``used``: the login that was not enough."""
    what = (
        f"{host} requires a login for {repository} ({code}), and there is none here"
        if used is None
        else f"{host} denies the login in {used.source} access to {repository} ({code})"
    )
    fix = f"docker login {host} (or podman login {host}, or a line `machine {host} login ...` in Enroot's .credentials)"
    return RefusedError(what, where=f"{host}/{repository}", fix=_NGC_FIX if host == "nvcr.io" else fix)


def short_json(response: requests.Response) -> Any:
    """What an answer that was requested as a stream says; ValueError: it is no JSON, or too long."""
    with response:
        try:
            raw = content(response, _LONGEST_ANSWER)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ValueError(str(error)) from error
    if len(raw) > _LONGEST_ANSWER:
        raise ValueError(f"more than {_LONGEST_ANSWER} bytes")
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested without end") from error


def pieces(response: requests.Response, *, decoded: bool = False) -> Iterator[bytes]:
    """The body of an answer that was requested as a stream, as it arrives. InfrastructureError: that is too slow."""
    while piece := response.raw.read1(_PIECE, decode_content=decoded):
        yield piece


def content(response: requests.Response, most: int) -> bytes:
    """The body of a short answer; of one that has more than ``most`` bytes only the beginning, which is longer."""
    raw = b""
    for piece in pieces(response, decoded=True):
        raw += piece
        if len(raw) > most:
            break
    return raw


def retry_after(text: str) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date; None where it says neither."""
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(timezone.utc)).total_seconds())
    except (TypeError, ValueError):
        return None


def reason(error: BaseException) -> str:
    """The innermost reason: the outer ones repeat it, with addresses of objects."""
    inner = _innermost(error)
    if isinstance(inner, ssl.SSLError):
        return getattr(inner, "verify_message", "") or f"TLS failed ({(inner.reason or '?').replace('_', ' ').lower()})"
    return re.sub(r"^.*?\(?<[^>]*>\)?: ", "", str(inner.args[0] if inner.args else inner))


def _of_certificates(error: BaseException) -> bool:
    inner = _innermost(error)
    return isinstance(inner, ssl.SSLError) and "CERTIFICATE" in (inner.reason or "")


def _innermost(error: BaseException) -> BaseException:
    inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
    return _innermost(inner) if isinstance(inner, BaseException) else error


class _Session(requests.Session):
    """Takes no login from ~/.netrc: which one is sent, and to whom, is decided above. No redirect gives up TLS. As for
    engines, there are no cookies: they would go to every port of a host. Without TLS only a trusted user is asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mount("https://", _Adapter())
        self.mount("http://", _OwnPorts())

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target: str | None = super().get_redirect_target(resp)
        came, goes = urlsplit(resp.url), urlsplit(urljoin(resp.url, target or ""))
        if came.scheme == "https" and goes.scheme != "https":
            what = f"{came.netloc} redirects to {goes.netloc}, which is not encrypted"
            raise RefusedError(what, where=f"{came.scheme}://{came.netloc}{came.path}", fix=_REPORT)
        return target

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        prepared_request.headers.pop("Cookie", None)
        if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class _Adapter(requests.adapters.HTTPAdapter):
    """Waits for no answer that comes too slowly, be it the head, the body or what frames that."""

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *args: Any, **how: Any) -> Any:
        """Connections for a request, as the base class has them, but for what reads their answers."""
        pool: Any = super().get_connection_with_tls_context(request, *args, **how)
        answer = staticmethod(partial(_Answer, urlsplit(request.url or "").netloc))
        pool.ConnectionCls = type("Connection", (type(pool).ConnectionCls,), {"response_class": answer})
        return pool


class _Answer(http.client.HTTPResponse):
    def __init__(self, netloc: str, sock: socket.socket, *args: Any, **how: Any) -> None:
        super().__init__(sock, *args, **how)
        self.fp = io.BufferedReader(_Arriving(netloc, self.fp.detach()))


class _Arriving(io.RawIOBase):
    """The bytes of one answer as they arrive. InfrastructureError: that is too slow."""

    def __init__(self, netloc: str, raw: io.RawIOBase) -> None:
        self._netloc, self._raw = netloc, raw
        self._waited_s, self._count = 0.0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        began = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        self._waited_s, self._count = self._waited_s + time.monotonic() - began, self._count + count
        if self._waited_s > _LEAST_S and count:
            if self._count < LEAST_BYTES:
                what = f"{self._netloc} has sent {self._count} bytes in {self._waited_s:.0f} s, which is too slow"
                raise InfrastructureError(what, fix="try again later: what has arrived is kept")
            self._waited_s, self._count = 0.0, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _OwnPorts(_Adapter):
    """At this machine it connects to the address at which a trusted user listens."""

    def build_connection_pool_key_attributes(self, request: requests.PreparedRequest, *args: Any) -> Any:
        """The host and port to connect to, and how."""
        place, how = super().build_connection_pool_key_attributes(request, *args)
        if is_loopback(netloc := urlsplit(request.url or "").netloc):
            request.headers["Host"] = netloc
            place["host"] = ensure_own_port(netloc)
        return place, how


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
