"""Makes a key pair: the private half signs for the worker, the public half checks for consumers."""

import os
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

__all__ = ["KeyPairError", "new"]

# 2026-11, worker.a
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class KeyPairError(ValueError):
    """No pair was made; the message is one sentence."""


def new(folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.key`` (private, mode 0600) and ``NAME.pem`` (public, 0644) into ``folder``.

    Both are PEM. Raises KeyPairError where a file of that name is there or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise KeyPairError(f"{name!r} is no name of a key: letters, digits, _ and -.")
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.key", folder / f"{name}.pem"
    if public.exists():
        raise KeyPairError(f"{public} is there already; a key is never overwritten.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(
            private,
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            0o600,
        )
        _write(
            public,
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            0o644,
        )
    except FileExistsError as error:
        raise KeyPairError(
            f"{error.filename} is there already; a key is never overwritten."
        ) from error
    except OSError as error:
        raise KeyPairError(f"{error.filename} cannot be written: {error.strerror}.") from error
    return private, public


def _write(path: Path, content: bytes, mode: int) -> None:
    """Create a file that nobody else could read before its mode was set."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
