"""The way to Kafka: what the settings become, and what is refused with one sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from evidence.transport import Kafka, TransportError
from ringfence.settings import SettingsError, load

SASL = Kafka(
    bootstrap="k1:9093,k2:9093",
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="sink",
    sasl_password="hidden",
    ssl_cafile="/etc/ca.pem",
    ssl_check_hostname=False,
)


def test_plain_text_asks_for_nothing_more() -> None:
    assert Kafka(bootstrap="k1:9092").client() == {
        "bootstrap_servers": ["k1:9092"],
        "security_protocol": "PLAINTEXT",
    }


def test_tls_and_sasl_become_the_clients_own_arguments() -> None:
    assert SASL.client() == {
        "bootstrap_servers": ["k1:9093", "k2:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "sink",
        "sasl_plain_password": "hidden",
        "ssl_cafile": "/etc/ca.pem",
        "ssl_check_hostname": False,
    }


def test_a_password_is_read_from_its_file_at_each_client_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    kafka = replace(SASL, sasl_password=None, sasl_password_file=str(file))
    for password in ("first", "with blanks ", "thïrd"):
        file.write_text(password + "\n", encoding="utf-8")
        assert kafka.client()["sasl_plain_password"] == password
    assert "hidden" not in repr(SASL)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"security_protocol": "TLS"}, "security_protocol: 'TLS' is none of PLAINTEXT, SSL, "),
        ({"sasl_mechanism": None}, "sasl_mechanism: '' is none of PLAIN, SCRAM-SHA-256, "),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_mechanism: 'OAUTHBEARER' is none of "),
        ({"sasl_username": None}, "sasl_username is needed for SASL_SSL"),
        ({"sasl_password_file": "/x"}, "sasl_password and sasl_password_file are both set: "),
        (
            {"sasl_password": None, "sasl_password_file": "/nowhere/pw"},
            "sasl_password_file cannot be read: .*No such file",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(TransportError, match=sentence):
        replace(SASL, **changes).check()  # type: ignore[arg-type]


def test_right_settings_are_taken() -> None:
    SASL.check()
    Kafka().check()


def test_wrong_settings_are_refused_at_the_front_door(tmp_path: Path) -> None:
    file = tmp_path / "ringfence.toml"
    file.write_text('[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "GSSAPI"\n')
    with pytest.raises(SettingsError, match=r"^\[kafka\] sasl_mechanism: 'GSSAPI' is none of"):
        _ = load(file, None, environ={}).kafka
    file.write_text("[kafka]\nssl_check_hostname = false\n")
    assert load(file, None, environ={}).kafka.ssl_check_hostname is False
    environ = {"RINGFENCE_KAFKA_SSL_CHECK_HOSTNAME": "false"}
    assert load(None, None, environ=environ).kafka.ssl_check_hostname is False
