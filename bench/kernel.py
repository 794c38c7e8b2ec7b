"""Kernel-log lines parsed a second: noise and Xid lines apart, as the agent reads them."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import load_kernel
from figure import Figure, cpu_rates
from rig import Rig

from collectors.kernel import parse_message, parse_stream

__all__ = ["measure"]

NOISE_MARK = 300_000
XID_MARK = 50_000

# NVRM: Xid (PCI:0000:4b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
_ONE_PATTERN = re.compile(rb"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+), (.*)")


def measure(rig: Rig) -> Iterator[Figure]:
    """Six figures; the peer is one regular expression searched in every line, no record made."""
    count, runs = (20_000, 1) if rig.quick else (200_000, 5)
    noise, xids = load_kernel.noise(count), load_kernel.xids(count // 2)

    def searched(lines: list[bytes]) -> tuple[str, float]:
        rates = cpu_rates(lambda: _search(lines), runs)
        return "one regular expression a line", max(rates)

    yield Figure(
        "kernel noise lines",
        "lines/s",
        cpu_rates(lambda: _parse(noise, keep_other=False), runs),
        NOISE_MARK,
        peer=searched(noise),
        note="counted, as the agent does, not kept; a second of one core",
    )
    yield Figure(
        "kernel noise lines, each kept as a record",
        "lines/s",
        cpu_rates(lambda: _parse(noise, keep_other=True), runs),
        note="as `ringfence parse kernel` reads them",
    )
    yield Figure(
        "Xid lines",
        "lines/s",
        cpu_rates(lambda: _parse(xids, keep_other=False), runs),
        XID_MARK,
        peer=searched(xids),
        note="one record a line, with its id and time; a second of one core",
    )
    yield Figure(
        "Xid lines, looked through for storms too",
        "lines/s",
        cpu_rates(lambda: _parse(xids, keep_other=False, coalesce=True), runs),
        note="as the agent ships them; no two of these lines are equal",
    )
    for shapes in ("noise", "xid"):
        texts = load_kernel.messages(shapes, count // 2, seed=5)
        yield Figure(
            f"grammar alone, {shapes} messages",
            "messages/s",
            cpu_rates(_grammar(texts), runs),
            note="line prefix already off, no record made",
        )


def _parse(lines: list[bytes], *, keep_other: bool, coalesce: bool = False) -> int:
    records = parse_stream(
        lines,
        host="hgx100",
        now=load_kernel.BEGAN,
        file="/var/log/kern.log",
        keep_other=keep_other,
        coalesce=coalesce,
    )
    _drain(records)
    return len(lines)


def _grammar(texts: list[str]) -> Callable[[], int]:
    def work() -> int:
        _drain(map(parse_message, texts))
        return len(texts)

    return work


def _search(lines: list[bytes]) -> int:
    search = _ONE_PATTERN.search
    for line in lines:
        found = search(line)
        if found is not None:
            found.groups()
    return len(lines)


def _drain(records: Iterable[object]) -> None:
    deque(records, maxlen=0)
