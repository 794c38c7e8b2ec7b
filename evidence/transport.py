"""How to reach Kafka: plain data that every part turns into its own client's arguments.

One meaning of every setting in three clients: kafka-python (agent, sink, scheduler, command line),
its admin client, and aiokafka under Faust (`streams.app`).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MECHANISMS", "PROTOCOLS", "Kafka", "TransportError"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: SASL with a name and a password. Kerberos (GSSAPI) and OAUTHBEARER need a library or a token
#: provider beside that, in each client another one: they are not offered.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class TransportError(OSError):
    """The settings of the way to Kafka cannot work; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """One cluster: where it is, how to speak to it, and how our topics are named there.

    ``partitions`` is the shared count of the host-, job- and subnet-keyed topics. TLS and SASL are
    used when ``security_protocol`` says so (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL).
    ``sasl_password_file`` is read whenever a client is made, so that a new password needs no new
    settings; without ``ssl_check_hostname`` a certificate of the right authority is taken whatever
    name it has. A part that starts waits ``start_within_s`` for a cluster that is not there yet.
    """

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = "ringfence."
    partitions: int = 4
    replication: int = 1
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_password_file: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_check_hostname: bool = True
    start_within_s: float = 30.0

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether we give a name and a password."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def check(self) -> None:
        """Raise TransportError where the settings contradict each other or name what is not."""
        if self.security_protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise TransportError(
                f"security_protocol: {self.security_protocol!r} is none of {known}"
            )
        if self.sasl:
            if self.sasl_mechanism not in MECHANISMS:
                known = ", ".join(MECHANISMS)
                raise TransportError(
                    f"sasl_mechanism: {self.sasl_mechanism or ''!r} is none of {known}"
                )
            if not self.sasl_username:
                raise TransportError(f"sasl_username is needed for {self.security_protocol}")
        self.password()

    def password(self) -> str | None:
        """The password, read from its file where there is one (its last line end left out).

        Raises TransportError where both are set or the file cannot be read.
        """
        if self.sasl_password_file is None:
            return self.sasl_password
        if self.sasl_password is not None:
            raise TransportError("sasl_password and sasl_password_file are both set: keep one")
        try:
            text = Path(self.sasl_password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TransportError(f"sasl_password_file cannot be read: {error}") from error
        return text.removesuffix("\n").removesuffix("\r")

    def topic(self, name: str) -> str:
        """The full name of a topic given its short one."""
        return self.prefix + name

    def client(self) -> dict[str, Any]:
        """Keyword arguments that any kafka-python client takes; raises TransportError."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap.split(","),
            "security_protocol": self.security_protocol,
        }
        if self.sasl_mechanism:
            arguments |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.password(),
            }
        if self.tls:
            arguments["ssl_check_hostname"] = self.ssl_check_hostname
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if value := getattr(self, name):
                arguments[name] = value
        return arguments
