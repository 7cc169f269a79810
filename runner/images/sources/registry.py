"""A registry's read side: tags to digests, manifests, and layers into the cache of ``blobs``.

OCI distribution specification 1.1. Content is accepted by its digest only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path

import requests
import urllib3

from runner.core.errors import InfrastructureError, RefusedError, RunnerError
from runner.core.progress import Progress
from runner.core.text import instead
from runner.images.reference import Reference
from runner.images.sources import blobs, manifests, registry_http
from runner.images.sources.blobs import run_in_parallel
from runner.images.sources.manifests import Descriptor
from runner.images.sources.registry_http import ATTEMPTS, FIRST_PAUSE_S, Connection, reason, short_json

_PARALLEL = 6  # layers at once: one stream of a registry is seldom as fast as the network
_ACCEPTED = ", ".join(manifests.MEDIA_TYPES)


class Registry:
    """The repository that a reference names; its tag plays no part. ``say`` receives a line for each pause and retry.

    Its methods raise RefusedError where there is no such image, or a login is needed; InfrastructureError where nothing
    answers, or with other bytes than a digest says.
    """

    def __init__(self, reference: Reference, say: Callable[[str], None]) -> None:
        self._http = Connection(reference, say)

    def resolve(self, tag: str) -> str:
        """The digest that a tag stands for now: one small request."""
        with self._http.get(f"manifests/{tag}", method="HEAD", accept=_ACCEPTED) as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                raise self._no_such(tag)
            digest = response.headers.get("Docker-Content-Digest", "")
        return digest if manifests.is_digest(digest) else manifests.digest_of(self.manifest(tag))

    def manifest(self, name: str) -> bytes:
        """The manifest or index of a tag or digest; a kept digest is not requested again."""
        if manifests.is_digest(name) and (kept := blobs.read(name)) is not None:
            return kept
        with self._http.get(f"manifests/{name}", accept=_ACCEPTED) as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                raise self._no_such(name)
            try:
                raw = registry_http.content(response, manifests.LARGEST_DOCUMENT)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._cut(error) from error
        digest = manifests.digest_of(raw)
        if len(raw) > manifests.LARGEST_DOCUMENT or (manifests.is_digest(name) and digest != name):
            raise InfrastructureError(
                f"{self._http.host} sent a manifest that is not the one of {name} (its digest is {digest})",
                where=self._http.where(name),
                fix="try again; if that fails too, the registry or something on the way to it is broken",
            )
        blobs.keep(digest, raw)
        return raw

    def document(self, descriptor: Descriptor) -> bytes:
        """A small blob, such as an image's configuration."""
        if descriptor.size > manifests.LARGEST_DOCUMENT:
            what = f"an image's configuration of {descriptor.size} bytes"
            raise InfrastructureError(what, where=self._http.where(descriptor.digest))
        kept = blobs.read(descriptor.digest)
        return kept if kept is not None else self._obtained(descriptor, lambda _: None).read_bytes()

    def layers(self, descriptors: tuple[Descriptor, ...], progress: Progress) -> dict[str, Path]:
        """All these blobs, several at once; digest -> file in the cache.

        What has arrived stays when one fails or the user interrupts: the next call goes on from there.
        """
        wanted = {one.digest: one for one in descriptors}
        total = sum(one.size for one in wanted.values())
        done = 0
        counting = threading.Lock()

        def moved(count: int) -> None:
            nonlocal done
            with counting:
                done += count

        blobs.sweep()
        progress.step(f"fetching {len(wanted)} layers of {total / 1e6:.0f} MB from {self._http.host}")
        # The largest first, so that the last to end is a small one.
        order = sorted(wanted.values(), key=lambda one: -one.size)
        works = [partial(self._obtained, one, moved) for one in order]
        fetched = run_in_parallel(
            works, workers=_PARALLEL, tick=lambda: progress.moved(done, total), stop=self._http.stop
        )
        return {one.digest: path for one, path in zip(order, fetched, strict=True)}

    def _obtained(self, descriptor: Descriptor, moved: Callable[[int], None]) -> Path:
        return blobs.obtain(
            descriptor.digest, descriptor.size, lambda start: self._body(descriptor, start), moved, self._http.say
        )

    def _body(self, descriptor: Descriptor, start: int) -> tuple[int, Iterator[bytes]]:
        """The blob from an offset on, or from 0 where the registry sends only whole ones."""
        response = self._blob(descriptor, start)
        begun = start if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
        return begun, self._past_cuts(descriptor, response, begun)

    def _past_cuts(self, descriptor: Descriptor, response: requests.Response, at: int) -> Iterator[bytes]:
        """The body of an answer that begins at byte ``at`` of the blob; where it is cut, another request continues."""
        fruitless = 0
        skip = 0
        while True:
            began = at
            try:
                with response:
                    for chunk in registry_http.pieces(response):
                        self._http.heed_stop()
                        fresh = chunk[skip:]
                        skip -= min(skip, len(chunk))
                        at += len(fresh)
                        yield fresh
                if at >= descriptor.size:
                    return
                raise urllib3.exceptions.ProtocolError(f"it ended after {at} of {descriptor.size} bytes")
            except (urllib3.exceptions.HTTPError, OSError) as error:
                fruitless = 0 if at - began > registry_http.LEAST_BYTES else fruitless + 1
                if fruitless >= ATTEMPTS:
                    raise self._cut(error) from error
                short = descriptor.digest.removeprefix("sha256:")[:12]
                self._http.say(f"layer {short} was cut at {at / 1e6:.1f} MB ({reason(error)}): going on from there")
                self._http.pause(FIRST_PAUSE_S * 2**fruitless)
            response = self._blob(descriptor, at)
            skip = 0 if response.status_code == HTTPStatus.PARTIAL_CONTENT else at

    def _blob(self, descriptor: Descriptor, start: int) -> requests.Response:
        headers = {"Range": f"bytes={start}-"} if start else {}
        response = self._http.get(f"blobs/{descriptor.digest}", headers=headers)
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            response.close()
            response = self._http.get(f"blobs/{descriptor.digest}")
        content_range = response.headers.get("Content-Range", "")
        problem = ""
        if response.status_code == HTTPStatus.NOT_FOUND:
            problem = "has a manifest of this blob, and not the blob"
        elif response.status_code == HTTPStatus.PARTIAL_CONTENT and not content_range.startswith(f"bytes {start}-"):
            problem = f"got a request for bytes from {start} on and sent {content_range!r}"
        if problem:
            response.close()
            raise InfrastructureError(
                f"{self._http.host} {problem}", where=self._http.where(descriptor.digest), fix="push the image again"
            )
        return response

    def _no_such(self, name: str) -> RefusedError:
        tags = [] if manifests.is_digest(name) else self._tags()
        return RefusedError(
            f"{self._http.host} has no such image",
            where=self._http.where(name),
            fix=instead(name, tags, f"some of its tags: {', '.join(tags[-8:])}")
            if tags
            else "check the name; a private repository may require a login before it can be found",
        )

    def _tags(self) -> list[str]:
        """Tags of the repository, as many as come at once; none where the registry does not list them."""
        try:
            with self._http.get("tags/list?n=1000") as response:
                return [tag for tag in short_json(response).get("tags") or [] if isinstance(tag, str)]
        except (RunnerError, ValueError, AttributeError, requests.exceptions.RequestException):
            return []

    def _cut(self, error: Exception) -> InfrastructureError:
        return InfrastructureError(
            f"the connection to {self._http.host} was lost again and again: {reason(error)}",
            where=self._http.where(),
            fix="try again: what has arrived is kept",
        )
