"""The command line, called in this process as the console script calls it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ringfence.cli import main

Ringfence = Callable[..., Result]


@pytest.fixture
def ringfence(tmp_path: Path) -> Ringfence:
    """``ringfence(*arguments, stdin=b"")``: exit code, stdout and stderr of one call.

    Everything it keeps lies under the test's own folder. What would be a traceback on the screen
    is raised.
    """

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        given = ["--data", str(tmp_path / "data"), *arguments]
        result = CliRunner().invoke(main, given, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
