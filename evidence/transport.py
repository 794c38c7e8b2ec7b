"""How to reach Kafka: plain data that every part turns into its own client's arguments."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Kafka"]


@dataclass(frozen=True, slots=True)
class Kafka:
    """One cluster: where it is, how to speak to it, and how our topics are named there.

    ``partitions`` is the shared count of the host-, job- and subnet-keyed topics. TLS and SASL are
    used when ``security_protocol`` says so (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL). A part that
    starts waits ``start_within_s`` for a cluster that is not there yet.
    """

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = "ringfence."
    partitions: int = 4
    replication: int = 1
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    start_within_s: float = 30.0

    def topic(self, name: str) -> str:
        """The full name of a topic given its short one."""
        return self.prefix + name

    def client(self) -> dict[str, Any]:
        """Keyword arguments that any kafka-python client takes."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap.split(","),
            "security_protocol": self.security_protocol,
        }
        if self.sasl_mechanism:
            arguments |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if value := getattr(self, name):
                arguments[name] = value
        return arguments
