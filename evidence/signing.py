"""Signed commands: Ed25519 over the full topic name and the exact bytes of the value.

The topic is signed too, so that what was sent to one cluster cannot be sent again to another.
Imported only where keys are configured: nothing else needs the package ``cryptography``.
"""

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

__all__ = ["KEY", "SIGNATURE", "KeyFileError", "Keyring", "Signer", "signed_bytes"]

#: Kafka headers: the base64 of the signature, and the name of the key it was made with.
SIGNATURE, KEY = "ringfence-signature", "ringfence-key"

_CONTEXT = b"ringfence-signature-v1"
_LARGEST_PEM = 64 * 1024


class KeyFileError(ValueError):
    """A key file cannot be used; the message is one sentence and holds nothing of the key."""


def signed_bytes(topic: str, value: bytes) -> bytes:
    """What is signed, given the full topic name: a version, the topic, the value, NUL between."""
    return b"\x00".join((_CONTEXT, topic.encode(), value))


class Signer:
    """Signs with one private key; ``name`` is the key's id for those who check."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self._name = name
        self._key = key

    @classmethod
    def read(cls, path: Path) -> "Signer":
        """Read an unencrypted PEM file (PKCS #8), named by its stem. Raises KeyFileError."""
        content = _content(path)
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise KeyFileError(f"{path} is no unencrypted private key in PEM.") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(f"{path} is no Ed25519 key.")
        return cls(path.stem, key)

    def headers(self, topic: str, value: bytes) -> list[tuple[str, bytes]]:
        """Kafka headers for one message; ``topic`` is the full name."""
        signature = self._key.sign(signed_bytes(topic, value))
        return [(SIGNATURE, base64.b64encode(signature)), (KEY, self._name.encode())]


class Keyring:
    """Public keys by name, read from a PEM file or a folder of ``*.pem``; the stem is the name.

    `refresh` sees keys that come and go. What cannot be read checks nothing: it fails closed.
    """

    def __init__(self, path: Path) -> None:
        """Read the keys. Raises KeyFileError where there is none, or one is no public key."""
        self._path = path
        self._seen = self._look()
        self._keys = self._read()

    @property
    def names(self) -> list[str]:
        """Names of the keys that are trusted."""
        return sorted(self._keys)

    def refresh(self) -> None:
        """Read the keys again if a file changed. Raises KeyFileError; then none is trusted."""
        seen = self._look()
        if seen != self._seen:
            self._seen, self._keys = seen, {}
            self._keys = self._read()

    def flaw(
        self, topic: str, value: bytes, headers: Iterable[tuple[str, bytes | None]]
    ) -> str | None:
        """Why a message is not to be believed, in one sentence; None where a trusted key signed it.

        ``topic`` is the full name. A header that is there twice is believed in neither.
        """
        found: dict[str, list[bytes]] = {SIGNATURE: [], KEY: []}
        for name, text in headers:
            if name in found:
                found[name].append(text or b"")
        signatures, names = found[SIGNATURE], found[KEY]
        if not signatures and not names:
            return "it is not signed"
        if len(signatures) != 1 or len(names) != 1:
            return f"it needs one header {SIGNATURE} and one {KEY}"
        name = names[0].decode(errors="replace")
        key = self._keys.get(name)
        if key is None:
            return f"it is signed with the key {name[:80]!r}, which is not trusted here"
        try:
            key.verify(base64.b64decode(signatures[0], validate=True), signed_bytes(topic, value))
        except (InvalidSignature, binascii.Error, ValueError):
            return f"its signature with the key {name!r} does not fit: altered, or of another topic"
        return None

    def _files(self) -> list[Path]:
        return sorted(self._path.glob("*.pem")) if self._path.is_dir() else [self._path]

    def _look(self) -> tuple[tuple[str, int, int, int], ...]:
        try:
            stats = [(path.name, path.stat()) for path in self._files()]
        except OSError:
            return ()
        return tuple((name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in stats)

    def _read(self) -> dict[str, Ed25519PublicKey]:
        keys = {}
        for path in self._files():
            content = _content(path)
            try:
                key = load_pem_public_key(content)
            except (ValueError, UnsupportedAlgorithm) as error:
                raise KeyFileError(f"{path} is no public key in PEM.") from error
            if not isinstance(key, Ed25519PublicKey):
                raise KeyFileError(f"{path} is no Ed25519 key.")
            keys[path.stem] = key
        if not keys:
            raise KeyFileError(f"No public key (*.pem) is in {self._path}.")
        return keys


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_PEM + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > _LARGEST_PEM:
        raise KeyFileError(f"{path} is too large for a key.")
    return content
