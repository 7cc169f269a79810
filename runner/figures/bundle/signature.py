"""Signatures of a bundle's tag manifest by ``ssh-keygen -Y``: made with the user's key, verified by allowed signers."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Literal

from runner.core import files, process
from runner.core.errors import NotProvenError, UsageError

NAMESPACE = "gpu-runner-bundle"
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_HEAD, _FOOT = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\n"
_COLUMNS = 70  # of ssh-keygen
_MOST_BYTES = 100_000
State = Literal["none", "valid", "unknown signer", "not checked"]


def sign(manifest: bytes, key: Path) -> bytes:
    """The signature of a tag manifest by a key: a private one, or a public one whose private one an agent has.

    Raises:
        UsageError: the key cannot sign.
    """
    if not key.is_file():
        raise UsageError("there is no such key", where=str(key), fix="--sign FILE: a private ssh key, as of ssh-keygen")
    with files.temporary_directory() as directory:
        file = directory / "manifest"
        file.write_bytes(manifest)
        done = _keygen("sign", "-q", "-n", NAMESPACE, "-f", key, file)
        signature = file.with_name(f"{file.name}.sig")
        if done.code != 0 or not signature.is_file():
            why = [line.strip() for line in done.err.splitlines() if line.strip()] or ["ssh-keygen gives no reason"]
            fix = "a key with a passphrase signs through ssh-agent: give its .pub file"
            raise UsageError(f"the key cannot sign: {why[-1]}", where=str(key), fix=fix)
        return signature.read_bytes()


def verify(manifest: bytes, signature: bytes | None, allowed: Path | None) -> tuple[State, str]:
    """Whether a tag manifest was signed, and by whom.

    Raises:
        NotProvenError: the signature is not of this manifest, not by an allowed signer, or missing where there must be
            one.
        UsageError: the file of allowed signers is missing, or there is no ssh-keygen to read it.
    """
    if allowed is not None and not allowed.is_file():
        raise UsageError("there is no such file of allowed signers", where=str(allowed))
    if signature is None and allowed is not None:
        raise NotProvenError("the bundle has no signature", fix="without --allowed-signers its consistency is verified")
    if signature is None:
        return "none", ""
    _check_form(signature)
    if allowed is None and process.find("ssh-keygen") is None:
        return "not checked", ""
    with files.temporary_directory() as directory:
        file = directory / "signature"
        file.write_bytes(signature)
        common, text = ("-n", NAMESPACE, "-s", file), manifest.decode("ascii")
        checked = _keygen("check-novalidate", *common, text=text)
        key = _FINGERPRINT.search(checked.out)
        if checked.code != 0 or key is None:
            raise NotProvenError("the signature is not one of this bundle: it, or the bundle, was altered")
        if allowed is None:
            return "unknown signer", key[0]
        principals = _keygen("find-principals", "-s", file, "-f", allowed, text=text)
        for signer in principals.out.replace(",", "\n").splitlines() if principals.code == 0 else ():
            if _keygen("verify", "-f", allowed, "-I", signer, *common, text=text).code == 0:
                return "valid", signer
    raise NotProvenError(
        f"the bundle is signed by a stranger: the key {key[0]} is not one of the allowed signers, "
        "or not today, or not for this purpose",
        where=str(allowed),
        fix="take the key into that file if you know whose it is (ssh-keygen(1), ALLOWED SIGNERS)",
    )


def _keygen(what: str, *arguments: str | Path, text: str | None = None) -> process.Completed:
    if process.find("ssh-keygen") is None:
        raise UsageError(
            "there is no ssh-keygen here, which signs and verifies", fix="install OpenSSH's client, 8.2 or newer"
        )
    return process.run(["ssh-keygen", "-Y", what, *arguments], timeout_s=60.0, input_text=text, check=False)


def _check_form(signature: bytes) -> None:
    """Refuse what is not exactly as ssh-keygen writes it: nothing can be added to it."""
    try:
        text = signature.decode("ascii")
        body = text.removeprefix(_HEAD).removesuffix(_FOOT)
        raw = base64.b64decode(body.replace("\n", ""), validate=True)
    except (UnicodeDecodeError, binascii.Error, ValueError):
        raise NotProvenError("the signature was altered: it has no form of one") from None
    code = base64.b64encode(raw).decode("ascii")
    lines = "".join(f"{code[start : start + _COLUMNS]}\n" for start in range(0, len(code), _COLUMNS))
    if len(signature) > _MOST_BYTES or text != f"{_HEAD}{lines}{_FOOT}":
        raise NotProvenError("the signature was altered: it is not as ssh-keygen writes it")
