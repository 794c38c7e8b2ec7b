"""A sink as a process of its own: ``python sink_process.py BOOTSTRAP PREFIX ROOT [FIELD=VALUE]``.

Tests start it, kill it and start it again; it stops by SIGTERM as the real one does. With
``die_at=POINT`` it kills itself when it is at that point for the third time.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from evidence.transport import Kafka
from warehouse.sink import SinkConfig, run

DEADLY_TIME = 3


def main() -> None:
    bootstrap, prefix, root, *settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    given = dict(one.split("=") for one in settings)
    deadly = given.pop("die_at", None)
    reached = 0

    def at_point(point: str) -> None:
        nonlocal reached
        reached += point == deadly
        if reached == DEADLY_TIME:
            os.kill(os.getpid(), signal.SIGKILL)

    values = {name: float(value) for name, value in given.items()}
    whole = {name: int(value) for name, value in values.items() if not name.endswith("_s")}
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = SinkConfig(
        kafka=Kafka(bootstrap=bootstrap, prefix=prefix), root=Path(root), **(values | whole)
    )
    run(config, stop, at_point)


if __name__ == "__main__":
    main()
