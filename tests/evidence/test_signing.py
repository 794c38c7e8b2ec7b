import base64
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from evidence.signing import KEY, SIGNATURE, KeyFileError, Keyring, Signer, signed_bytes
from ringfence.keys import KeyPairError, new

PAGE = (Path(__file__).parents[2] / "docs" / "isolation-contract.md").read_text()
TOPIC, VALUE = "ringfence.isolation.commands", b'{"schema":"command/1","id":"c1"}'


def _blocks() -> list[str]:
    return re.findall(r"```\n(.*?)```", PAGE.split("Test vector")[1], re.DOTALL)


def test_the_test_vector_of_the_contract_is_what_we_sign_and_check(tmp_path: Path) -> None:
    public, signature = _blocks()[:2]
    signer = Signer("vector", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    assert signer.headers(TOPIC, VALUE) == [
        (SIGNATURE, signature.strip().encode()),
        (KEY, b"vector"),
    ]
    (tmp_path / "vector.pem").write_text(public)
    keyring = Keyring(tmp_path)
    headers = [(SIGNATURE, signature.strip().encode()), (KEY, b"vector")]
    assert keyring.flaw(TOPIC, VALUE, headers) is None
    assert keyring.flaw(TOPIC, VALUE + b" ", headers) is not None
    assert keyring.flaw("other." + TOPIC, VALUE, headers) is not None


def test_what_is_signed_cannot_be_read_two_ways() -> None:
    assert signed_bytes("a", b"b") == b"ringfence-signature-v1\x00a\x00b"


@pytest.mark.parametrize(
    "signature",
    [b"", b"=", b"!!!!", b"\xff\xfe", base64.b64encode(b"\x00" * 64), base64.b64encode(b"short")],
)
def test_a_signature_that_is_noise_does_not_fit(tmp_path: Path, signature: bytes) -> None:
    new(tmp_path, "a")
    flaw = Keyring(tmp_path).flaw(TOPIC, VALUE, [(SIGNATURE, signature), (KEY, b"a")])
    assert flaw is not None
    assert flaw.startswith("its signature with the key 'a' does not fit")


def test_a_new_pair_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    private, public = new(tmp_path / "keys", "2026-a")
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    before = private.read_bytes()
    with pytest.raises(KeyPairError, match="is there already"):
        new(tmp_path / "keys", "2026-a")
    public.unlink()
    with pytest.raises(KeyPairError, match=r"2026-a\.key is there already"):
        new(tmp_path / "keys", "2026-a")
    assert private.read_bytes() == before
    assert not public.exists()


@pytest.mark.parametrize("name", ["", "../x", "a b", "a.pem", "-a", "a" * 65])
def test_a_name_that_is_no_files_stem_makes_no_key(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyPairError, match="is no name of a key"):
        new(tmp_path, name)


def test_a_folder_of_keys_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"No public key \(\*\.pem\) is in"):
        Keyring(tmp_path)
    private, _ = new(tmp_path, "a")
    (tmp_path / "b.pem").write_bytes(private.read_bytes())
    with pytest.raises(KeyFileError, match=r"b\.pem is no public key in PEM"):
        Keyring(tmp_path)
    curve = generate_private_key(SECP256R1())
    (tmp_path / "b.pem").write_bytes(
        curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(KeyFileError, match=r"b\.pem is no Ed25519 key"):
        Keyring(tmp_path)
    (tmp_path / "b.key").write_bytes(
        curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(KeyFileError, match=r"b\.key is no Ed25519 key"):
        Signer.read(tmp_path / "b.key")


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"-" * 70_000])
def test_a_private_key_that_is_none_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.key").write_bytes(content)
    with pytest.raises(KeyFileError, match=r"a\.key"):
        Signer.read(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match=r"nowhere\.key cannot be read"):
        Signer.read(tmp_path / "nowhere.key")
