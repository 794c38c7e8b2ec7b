"""Where a part listens, as a setting says it."""

import re

__all__ = ["listen_address"]

# 127.0.0.1:9455, [::1]:9455, localhost:9455
_LISTEN = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[^\s:\[\]/]+)):(?P<port>\d{1,5})")
_LAST_PORT = 65_535


def listen_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` (port 0: any free one); raises ValueError where it is not that."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None or int(found["port"]) > _LAST_PORT:
        raise ValueError(f"metrics_listen: {text!r} is not HOST:PORT")
    return found["six"] or found["name"], int(found["port"])
