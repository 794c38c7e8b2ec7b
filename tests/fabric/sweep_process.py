"""A process in which a Sweeper works on the simulated fabric, a sweep for each line on stdin.

It prints each record as a line of JSON and an empty line at the end of a sweep; how long it took
goes to stderr. Run with the
environment of `simulator.Simulator`; arguments of the Sweeper and the MadPort are given as JSON.
"""

import json
import sys
import time
from datetime import UTC, datetime

from collectors.fabric.mad import MadPort
from collectors.fabric.sweep import Sweeper
from evidence.wire import encode


def main() -> None:
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    sweeper = Sweeper("ib-a", lambda: datetime.now(UTC), **given.get("sweeper", {}))
    mads = MadPort(**given.get("port", {}))
    for _ in sys.stdin:
        began = time.perf_counter()
        records = sweeper.sweep(mads)
        took_s = time.perf_counter() - began
        lines = [encode(record).decode() for record in records]
        sys.stderr.write(json.dumps({"took_s": took_s}) + "\n")
        sys.stdout.write("\n".join([*lines, "", ""]))
        sys.stdout.flush()
    mads.close()


if __name__ == "__main__":
    main()
