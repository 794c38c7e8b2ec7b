"""The same topic into Parquet by quixstreams' own file sink: what ours is measured beside.

Arguments: bootstrap, topic, folder, rows. A frame is expanded to a row a GPU and tick, flat, as
ours is; everything else is the library's: its deserializer, its batches, its Parquet format (zstd).
It stops when it has written all rows, and prints wall and CPU seconds as JSON.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

from quixstreams import Application
from quixstreams.sinks.community.file.formats.parquet import ParquetFormat
from quixstreams.sinks.community.file.local import LocalFileSink

_TICK, _FRAME = ("at", "error", "error_text"), ("id", "host", "observed_at", "boot_id", "driver")


#: Frames between two checkpoints, at which it writes its files: 160,000 rows are in memory then.
_COMMIT_EVERY = 4000


def rows(frame: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row a GPU and tick."""
    of_frame = {name: frame.get(name) for name in _FRAME}
    for tick in frame.get("ticks", ()):
        of_tick = {name: tick.get(name) for name in _TICK}
        for gpu in tick.get("gpus", ()):
            yield of_frame | of_tick | gpu


def main() -> None:
    """Run to the end of the topic as it is now; joining the group is not counted."""
    bootstrap, topic, folder, count = sys.argv[1:]
    logging.disable(logging.INFO)
    began: list[float] = []

    def note(_topic: str, _partition: int, _offset: int) -> None:
        if not began:
            began.extend((time.monotonic(), time.process_time()))

    app = Application(
        broker_address=bootstrap,
        consumer_group=f"peer-{time.time_ns()}",
        auto_offset_reset="earliest",
        commit_interval=1e9,
        commit_every=_COMMIT_EVERY,
        on_message_processed=note,
        loglevel=None,
    )
    frames = app.dataframe(app.topic(topic, value_deserializer="json"))
    sink = LocalFileSink(directory=folder, format=ParquetFormat(compression="zstd"))
    frames.apply(lambda frame: list(rows(frame)), expand=True).sink(sink)
    app.run(count=int(count), timeout=60.0, collect=False)
    wall_s, cpu_s = time.monotonic() - began[0], time.process_time() - began[1]
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
