"""Acting as a user without powers, since tests may run as root."""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["NOBODY", "nobody"]

NOBODY = 65_534


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """As a user without powers: root may enter every folder."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
