"""What to run next where a verdict is not sure: the exact commands, on the host they concern.

A verdict says which evidence is missing; the part it names says how that is looked up. Nothing here
changes a node: every command only reads, but for the diagnostic, which says that it needs the card.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from evidence.decisions import Domain, DomainKind, Status, Verdict

__all__ = ["Step", "of"]

_UNSURE = (Status.SUSPECTED, Status.INSUFFICIENT)
#: How far around the event a log is asked for.
_AROUND = timedelta(minutes=15)
#: A log without wall-clock times has none to ask around.
_CLOCK = datetime(1971, 1, 1, tzinfo=UTC)
#: More than a person tries in one go.
_MOST = 8

_GPUS = (DomainKind.GPU, DomainKind.MIG, DomainKind.NVLINK)


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command; ``on`` is the host to run it on, None where any node will do."""

    command: str
    why: str
    on: str | None = None


def of(verdict: Verdict) -> tuple[Step, ...]:
    """The commands that would settle an unsure verdict, the likeliest to tell first."""
    if verdict.status not in _UNSURE:
        return ()
    steps: dict[str, Step] = {}
    for step in (*_missing(verdict), *_part(verdict)):
        steps.setdefault(step.command, step)
    return tuple(steps.values())[:_MOST]


def _missing(verdict: Verdict) -> Iterator[Step]:
    """What the verdict itself asks for."""
    for asked in verdict.missing:
        for words, look in _BY_WORDS:
            if words in asked:
                yield from look(verdict)


def _part(verdict: Verdict) -> Iterator[Step]:
    """What is looked up about a part of that kind."""
    look = _BY_PART.get(verdict.domain.kind)
    if look is not None:
        yield from look(verdict)


def _host(verdict: Verdict) -> str | None:
    return verdict.domain.host or verdict.host


def _period(verdict: Verdict) -> str:
    """The flags of journalctl for the time around the event; this boot where it has no time."""
    if verdict.at < _CLOCK:
        return "-b"
    since, until = (verdict.at + by for by in (-_AROUND, _AROUND))
    return f"--since '{since:%Y-%m-%d %H:%M:%S} UTC' --until '{until:%Y-%m-%d %H:%M:%S} UTC'"


def _card(part: Domain) -> str | None:
    """The GPU as nvidia-smi's ``-i`` takes it; None where the domain is not one card."""
    if part.kind not in _GPUS:
        return None
    if part.pci is not None:
        return f"{part.pci}.0"
    return part.uuid or (None if part.index is None else str(part.index))


def _only(part: Domain) -> str:
    card = _card(part)
    return "" if card is None else f" -i {shlex.quote(card)}"


def _kernel_log(verdict: Verdict) -> Iterator[Step]:
    since = "" if verdict.at < _CLOCK else f" --since '{verdict.at - _AROUND:%Y-%m-%d %H:%M:%S}'"
    yield Step(
        on=_host(verdict),
        command=f"journalctl -k -o short-iso {_period(verdict)}",
        why="what the driver and the PCIe bus said",
    )
    yield Step(
        on=_host(verdict),
        command=f"TZ=UTC dmesg -T{since}",
        why="the same where no journal is kept",
    )


def _readings(verdict: Verdict) -> Iterator[Step]:
    yield Step(
        on=_host(verdict),
        command=f"nvidia-smi -q{_only(verdict.domain)}",
        why="ECC counts, row remaps, temperatures, and whether it still answers",
    )


def _job_log(verdict: Verdict) -> Iterator[Step]:
    yield Step(
        command="export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        f"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/nccl_trace_rank_  # job {_job(verdict)}",
        why="before its next start: each rank then says where it is, and leaves a dump",
    )


def _job(verdict: Verdict) -> str:
    return shlex.quote(verdict.job or verdict.domain.job or "in question")


def _ranks(verdict: Verdict) -> Iterator[Step]:
    """Where the processes of a hung job stand, while it still hangs."""
    apps = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
    yield Step(
        on=_host(verdict),
        command=f"for pid in $({apps}{_only(verdict.domain)}); do py-spy dump --pid $pid; done",
        why="where the ranks stand, if they still hang",
    )


def _below_port(verdict: Verdict) -> Iterator[Step]:
    at = verdict.domain.pci
    if at is not None:
        yield Step(
            on=_host(verdict), command=f"lspci -vvv -s {at}", why="the port's link and error state"
        )
    yield Step(on=_host(verdict), command="lspci -tvnn", why="which device is below which port")


def _nvlinks(verdict: Verdict) -> Iterator[Step]:
    only = _only(verdict.domain)
    yield Step(on=_host(verdict), command=f"nvidia-smi nvlink -s{only}", why="which links are up")
    yield Step(
        on=_host(verdict), command=f"nvidia-smi nvlink -e{only}", why="what each link has counted"
    )


def _gpu(verdict: Verdict) -> Iterator[Step]:
    part = verdict.domain
    if verdict.status is Status.INSUFFICIENT:
        yield from _kernel_log(verdict)
    yield from _readings(verdict)
    if part.kind is DomainKind.NVLINK:
        yield from _nvlinks(verdict)
    if part.rank is not None:
        yield from _ranks(verdict)
    one = "" if part.index is None or part.index < 0 else f" -i {part.index}"
    yield Step(
        on=_host(verdict),
        command=f"dcgmi diag -r 3{one}",
        why="loads the card for some minutes: drain the node first",
    )


def _node(verdict: Verdict) -> Iterator[Step]:
    yield from _kernel_log(verdict)
    yield Step(on=_host(verdict), command="journalctl --list-boots", why="when it was started")
    yield Step(
        on=_host(verdict), command="ipmitool sel elist", why="power, fans, memory, the board"
    )
    yield from _readings(verdict)


def _port(verdict: Verdict) -> Iterator[Step]:
    """The two ends of a network link, by the name that it is known by."""
    part = verdict.domain
    name, number = part.switch, "" if part.port is None else f" {part.port}"
    if name is None:
        yield Step(on=_host(verdict), command="ibstat", why="state and rate of its adapters")
    elif name.startswith("0x"):
        yield Step(
            command=f"ibqueryerrors --details -G {name}", why="error counters of every port of it"
        )
        yield Step(command=f"perfquery -x -G {name}{number}", why="all counters of the port")
    elif name.startswith("lid:"):
        lid = name.removeprefix("lid:")
        yield Step(command=f"perfquery -x {lid}{number}", why="all counters of the port")
        at = "" if part.port is None else f" -p {part.port}"
        yield Step(command=f"mlxlink -d lid-{lid}{at} -m -c", why="optics and bit errors")
    elif name.startswith("device:"):
        device = shlex.quote(name.removeprefix("device:"))
        yield Step(
            on=_host(verdict), command=f"mlxlink -d {device} -m -c", why="optics and bit errors"
        )


def _switch(verdict: Verdict) -> Iterator[Step]:
    name = verdict.domain.switch
    if name is not None and name.startswith(("0x", "lid:")):
        yield from _port(verdict)
        return
    yield from _nvlinks(verdict)
    yield Step(
        on=_host(verdict),
        command=f"journalctl -u nvidia-fabricmanager {_period(verdict)}",
        why="what the fabric manager saw",
    )


def _rack(verdict: Verdict) -> Iterator[Step]:
    yield Step(
        on=_host(verdict),
        command="ipmitool sel elist",
        why="on each node of the rack: power and temperature",
    )


def _whole_job(verdict: Verdict) -> Iterator[Step]:
    yield from _ranks(verdict)
    yield from _job_log(verdict)


_Look = Callable[[Verdict], Iterable[Step]]
#: What a verdict asks for -> how that is looked up; the words are those of the rules.
_BY_WORDS: tuple[tuple[str, _Look], ...] = (
    ("which GPU the rank used", _job_log),
    ("kernel log", _kernel_log),
    ("NVML snapshots", _readings),
    ("NCCL", _job_log),
    ("below that port", _below_port),
    ("Xid", _kernel_log),
    ("flight recorder", _ranks),
    ("logs of the", _job_log),
)
_BY_PART: dict[DomainKind, _Look] = {
    DomainKind.GPU: _gpu,
    DomainKind.MIG: _gpu,
    DomainKind.NVLINK: _gpu,
    DomainKind.NODE: _node,
    DomainKind.LINK: _port,
    DomainKind.SWITCH: _switch,
    DomainKind.RACK: _rack,
    DomainKind.JOB: _whole_job,
}
