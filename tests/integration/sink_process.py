"""A sink as a process of its own: ``python sink_process.py BOOTSTRAP PREFIX ROOT [FIELD=VALUE]``.

Tests start it, kill it and start it again; it stops by SIGTERM as the real one does.
"""

import logging
import signal
import sys
import threading
from pathlib import Path

from evidence.transport import Kafka
from warehouse.sink import SinkConfig, run


def main() -> None:
    bootstrap, prefix, root, *settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    values = {name: float(value) for name, value in (one.split("=") for one in settings)}
    whole = {name: int(value) for name, value in values.items() if not name.endswith("_s")}
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = SinkConfig(
        kafka=Kafka(bootstrap=bootstrap, prefix=prefix), root=Path(root), **(values | whole)
    )
    run(config, stop)


if __name__ == "__main__":
    main()
