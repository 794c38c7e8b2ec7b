"""TLS and SASL as the settings say it, against an Apache Kafka with a certificate of its own."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from collectors.shipping.shipper import Shipper
from evidence.records import KernelKind, KernelRecord
from evidence.transport import Kafka
from ringfence.cluster import ensure_topics
from ringfence.embedded import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.kafka,
    pytest.mark.skipif(
        shutil.which("openssl") is None and "RINGFENCE_REQUIRE_PARTS" not in os.environ,
        reason="openssl makes the certificates",
    ),
]

USER, PASSWORD = "node-agent", "s3cret of this test"
AT = datetime(2026, 7, 7, 7, 7, 7, tzinfo=UTC)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def certificates(folder: Path) -> None:
    """ca.pem, and broker.pem (key and certificate for 127.0.0.1 that it signed)."""
    day = ("-days", "2", "-nodes", "-newkey", "rsa:2048")
    openssl(
        folder, "req", "-x509", *day, "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem"
    )
    openssl(
        folder, "req", *day[2:], "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "b.csr"
    )
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    openssl(
        folder, "x509", "-req", "-in", "b.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-days", "2", "-extfile", "san", "-out", "broker.crt",
    )  # fmt: skip
    pem = (folder / "broker.key").read_text() + (folder / "broker.crt").read_text()
    (folder / "broker.pem").write_text(pem)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, apache_kafka: Any) -> Iterator[Kafka]:
    """A broker that takes SASL over TLS at a port of its own."""
    folder = tmp_path_factory.mktemp("secure")
    certificates(folder)
    port = free_port(None)

    class Secure(type(apache_kafka)):  # type: ignore[misc]
        def _write_properties(self) -> Path:
            path: Path = super()._write_properties()
            text = path.read_text()
            for name in ("listeners", "advertised.listeners"):
                text = text.replace(f"\n{name}=", f"\n{name}=SECURE://127.0.0.1:{port},")
            path.write_text(text.replace("protocol.map=", "protocol.map=SECURE:SASL_SSL,"))
            return path

    module = "org.apache.kafka.common.security"
    listener = "listener.name.secure."
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
    }
    settings = {listener + name: value for name, value in settings.items()}
    with Secure(folder / "kafka", heap_mb=256, settings=settings) as broker:
        plain = Kafka(bootstrap=broker.bootstrap, prefix="tls.")
        ensure_topics(plain)
        admin = KafkaAdminClient(**plain.client())
        user = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD)
        admin.alter_user_scram_credentials([user])
        admin.close()
        yield replace(
            plain,
            bootstrap=f"127.0.0.1:{port}",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username=USER,
            sasl_password=PASSWORD,
            ssl_cafile=str(folder / "ca.pem"),
        )


def line(seq: int) -> KernelRecord:
    return KernelRecord(id=f"k{seq}", observed_at=AT, raw="mce", kind=KernelKind.MCE, seq=seq)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_records_arrive_over_tls_and_sasl(secure: Kafka, mechanism: str) -> None:
    shipper = Shipper(replace(secure, sasl_mechanism=mechanism))
    for seq in range(100):
        shipper.send("kernel", "n1", line(seq))
    assert shipper.flush(20)
    shipper.close()
    assert shipper.delivered == {"kernel": 100}


#: Who speaks of the way to Kafka.
TELLERS = ("collectors.shipping.shipper", "collectors.shipping.ledger")


def refused(kafka: Kafka, spool: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a shipper says that may not in; its record waits, on the disk at the end."""
    shipper = Shipper(kafka, spool=spool)
    shipper.send("kernel", "n1", line(1))
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not any(one.name in TELLERS for one in caplog.records):
        time.sleep(0.02)
    assert not shipper.flush(1.5)
    assert (shipper.close(0.1), shipper.spooled[0], shipper.delivered) == (0, 1, {})
    return [one.getMessage() for one in caplog.records if one.name in TELLERS]


def test_a_wrong_password_is_one_sentence_and_records_wait(
    secure: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = replace(secure, sasl_password="forgotten", sasl_mechanism="SCRAM-SHA-256")
    said = refused(wrong, tmp_path / "spool.sqlite", caplog)
    # Which of the two it is depends on whether the broker's answer came before its goodbye.
    forms = (f"Kafka at {secure.bootstrap} hangs up on ", f"Kafka at {secure.bootstrap} refuses ")
    assert said
    assert len(set(said)) == len(said) <= len(forms)
    for sentence in said:
        assert sentence.startswith(forms)
        assert "user 'node-agent' (SCRAM-SHA-256)" in sentence
        assert sentence.endswith("check kafka.sasl_username and kafka.sasl_password")
    right = Shipper(secure, spool=tmp_path / "spool.sqlite")
    assert right.flush(20)
    right.close()
    assert right.delivered == {"kernel": 1}


def test_a_certificate_of_an_unknown_authority_is_one_sentence_and_records_wait(
    secure: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = refused(replace(secure, ssl_cafile=None), tmp_path / "spool.sqlite", caplog)
    assert said.startswith(
        f"Kafka at {secure.bootstrap} does not answer, records wait: "
        f"the certificate of {secure.bootstrap} is not trusted ("
    )
    assert said.endswith("): check kafka.ssl_cafile")


def test_tls_files_that_are_missing_are_named(
    secure: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = refused(
        replace(secure, ssl_cafile="/nowhere/ca.pem"), tmp_path / "spool.sqlite", caplog
    )
    assert "the TLS files (/nowhere/ca.pem) cannot be used: " in said
