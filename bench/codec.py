"""Records to bytes and back a second, beside Python's own json on the same plain data."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import load_gpu
import load_kernel
import load_nccl
import msgspec
from figure import Figure, cpu_rates
from msgspec import Struct
from rig import Rig

from evidence.wire import decoder, encode

__all__ = ["measure"]


def measure(rig: Rig) -> Iterator[Figure]:
    """Encoding and decoding of the three kinds that make the traffic."""
    size, runs = (200, 1) if rig.quick else (2_000, 5)
    end = load_kernel.BEGAN + timedelta(hours=1)
    frames = list(load_gpu.frames(8, size // 16, end))
    snapshots = load_gpu.GPUS * load_gpu.TICKS
    samples: dict[str, tuple[str, Sequence[Struct], int]] = {
        "kernel": ("Xid records", load_kernel.records(load_kernel.xids(size * 5), "hgx100"), 1),
        "nccl": ("NCCL records", list(load_nccl.job_records("train-1", size, 3, 1)), 1),
        "gpu": ("GPU snapshots", frames, snapshots),
    }
    for topic, (name, records, weight) in samples.items():
        values = [encode(record) for record in records]
        plain = [json.loads(value) for value in values]
        size_b = sum(map(len, values)) / len(values)
        note = f"{size_b / weight:.0f} bytes each; a second of one core"
        yield Figure(
            f"encode {name}",
            f"{name.split()[1]}/s",
            cpu_rates(_work(encode, records, weight), runs),
            peer=("json.dumps", max(cpu_rates(_work(json.dumps, plain, weight), runs))),
            note=note,
        )
        yield Figure(
            f"decode {name}",
            f"{name.split()[1]}/s",
            cpu_rates(_work(decoder(topic), values, weight), runs),
            peer=(
                "msgspec without types",
                max(cpu_rates(_work(msgspec.json.decode, values, weight), runs)),
            ),
            note=note,
        )


def _work(
    convert: Callable[..., object], values: Sequence[object], weight: int
) -> Callable[[], int]:
    def work() -> int:
        for value in values:
            convert(value)
        return weight * len(values)

    return work
