"""Does a hang end, and does it tell who hung? Timeouts of NCCL and the framework."""

import difflib
import re
from collections.abc import Iterator, Mapping
from importlib import resources

from ringfence.preflight.finding import Finding, Severity, found
from ringfence.preflight.launch import Launch, Said

__all__ = ["collective", "error_handling", "evidence", "infiniband", "unknown_variables"]

#: Flags that set the framework's timeout of collectives, and the seconds of one unit.
_COLLECTIVE: Mapping[str, float] = {
    "distributed-timeout-minutes": 60.0,  # Megatron-LM
    "distributed-timeout": 60.0,
    "ddp-timeout": 1.0,  # transformers
    "comm.train-timeout-seconds": 1.0,  # torchtitan
    "nccl-timeout": 1.0,
    "timeout-minutes": 60.0,
}
_LONG_S, _SHORT_S = 900.0, 120.0

#: One try waits 4.096 us * 2^n; the adapter tries so often (InfiniBand specification; NCCL's
#: default of NCCL_IB_RETRY_CNT).
_IB_UNIT_S, _IB_TRIES, _IB_MOST = 4.096e-6, 7, 31
_IB_LONG_S = 240.0

#: Variables that are often set and read by nobody, or no more, and what is meant.
_NO_SUCH: Mapping[str, str] = {
    "NCCL_SOCKET_TIMEOUT": "NCCL has no timeout of sockets; a collective's is the framework's",
    "NCCL_TIMEOUT": "a collective's timeout is the framework's (init_process_group)",
    "NCCL_TIMEOUT_MS": "a collective's timeout is the framework's (init_process_group)",
    "TORCH_NCCL_TIMEOUT": "the timeout is an argument of init_process_group",
    "TORCH_DISTRIBUTED_TIMEOUT": "the timeout is an argument of init_process_group",
    "NCCL_RETRY_CNT": "it is called NCCL_IB_RETRY_CNT",
    "NCCL_LL_THRESHOLD": "removed in NCCL 2.5",
    "NCCL_TREE_THRESHOLD": "removed in NCCL 2.5",
}
#: Old names that PyTorch still reads, with a warning.
_OLD: Mapping[str, str] = {
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
# NCCL_IB_TIMEOUT
_NCCL = re.compile(r"NCCL_[A-Z0-9_]+\Z")


def collective(launch: Launch) -> Iterator[Finding]:
    """A timeout of minutes: not a half hour, and not shorter than a slow first step."""
    given = next(
        ((name, launch.trainer[name]) for name in _COLLECTIVE if name in launch.trainer), None
    )
    if said := launch.env.get("DEEPSPEED_TIMEOUT"):
        given = given or ("DEEPSPEED_TIMEOUT", said)
    if given is None:
        return
    name, said = given
    try:
        seconds = float(said.value) * _COLLECTIVE.get(name, 60.0)
    except ValueError:
        return
    shown = name if name.isupper() else f"--{name}"
    if seconds > _LONG_S:
        yield found(
            "collective-timeout",
            Severity.WARNING,
            f"{shown}={said.value}: a hang holds every GPU for {seconds / 60:g} minutes.",
            "ten minutes; make evaluation and checkpoints not hold a collective for longer",
            said,
        )
    elif seconds < _SHORT_S:
        yield found(
            "collective-timeout",
            Severity.WARNING,
            f"{shown}={said.value}: {seconds:g} s is less than a first step, an evaluation or a "
            "checkpoint may take.",
            "five to ten minutes",
            said,
        )


def error_handling(launch: Launch) -> Iterator[Finding]:
    """PyTorch's watchdog ends a rank whose collective failed."""
    check = "error-handling"
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        said = launch.env.get(name)
        if said is not None and said.value == "0":
            yield found(
                check,
                Severity.ERROR,
                f"{name}=0: a rank whose collective failed or timed out waits for ever.",
                f"leave it out, or {name}=1",
                said,
            )
    said = launch.env.get("TORCH_NCCL_ENABLE_MONITORING")
    if said is not None and said.value == "0":
        yield found(
            check,
            Severity.WARNING,
            "TORCH_NCCL_ENABLE_MONITORING=0: a watchdog that is stuck itself ends nobody.",
            "leave it out",
            said,
        )
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        said = launch.env.get(name)
        if said is not None and said.value == "1":
            yield found(
                check,
                Severity.WARNING,
                f"{name}=1 makes wait() block and switches the watchdog's error handling off.",
                "leave it out",
                said,
            )
    old = [(name, launch.env[name]) for name in _OLD if name in launch.env]
    for name, said in old:
        yield found(
            check, Severity.NOTE, f"{name} is an old name.", f"{_OLD[name]}={said.value}", said
        )


def infiniband(launch: Launch) -> Iterator[Finding]:
    """NCCL_IB_TIMEOUT in words: seconds a try, and with all tries."""
    said = launch.env.get("NCCL_IB_TIMEOUT")
    if said is None:
        return
    check = "ib-timeout"
    if not said.value.isdecimal() or not 1 <= int(said.value) <= _IB_MOST:
        if "$" in said.value:
            return
        what = "0 waits for ever" if said.value == "0" else f"it is 1 to {_IB_MOST}"
        yield found(
            check, Severity.ERROR, f"NCCL_IB_TIMEOUT={said.value}: {what}.", "20, NCCL's own", said
        )
        return
    tries = _tries(launch)
    one_s = _IB_UNIT_S * 2 ** int(said.value)
    words = f"NCCL_IB_TIMEOUT={said.value} is {_duration(one_s)} a try, not {said.value} s; "
    words += f"with {tries} tries {_duration(one_s * tries)}."
    if one_s * tries > _IB_LONG_S:
        yield found(
            check,
            Severity.WARNING,
            f"{words} A dead peer is noticed so late.",
            "20 to 22; a flapping link needs the cable mended, not more patience",
            said,
        )
    else:
        yield found(check, Severity.NOTE, words, "nothing, if that is what is meant", said)


def _tries(launch: Launch) -> int:
    said = launch.env.get("NCCL_IB_RETRY_CNT")
    return int(said.value) if said is not None and said.value.isdecimal() else _IB_TRIES


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"  # noqa: PLR2004


def unknown_variables(launch: Launch) -> Iterator[Finding]:
    """NCCL's variables that NCCL does not have."""
    known = _known()
    for name, said in launch.env.items():
        if name in _NO_SUCH:
            yield found(
                "no-such-variable",
                Severity.WARNING,
                f"{name} does not exist: {_NO_SUCH[name]}.",
                "remove it",
                said,
            )
        elif _NCCL.match(name) and name not in known and name not in _OLD:
            near = difflib.get_close_matches(name, known, 1, 0.85)
            meant = f"; {near[0]} is" if near else ""
            yield found(
                "no-such-variable",
                Severity.NOTE,
                f"{name} is none of NCCL's documented variables{meant}.",
                near[0] if near else "remove it, if no plugin reads it",
                said,
            )


def _known() -> frozenset[str]:
    text = resources.files("ringfence.preflight").joinpath("nccl_variables.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def evidence(launch: Launch) -> Iterator[Finding]:
    """The words by which the rank that hung is found."""
    if not (launch.launcher or launch.trainer):
        return
    check = "evidence"
    debug = launch.env.get("NCCL_DEBUG")
    if debug is None or debug.value.upper() not in {"WARN", "INFO", "TRACE", "VERSION", "ABORT"}:
        yield found(
            check,
            Severity.WARNING,
            "NCCL_DEBUG is not set: NCCL's errors, and which rank has which card, stay unsaid.",
            "export NCCL_DEBUG=WARN (INFO with NCCL_DEBUG_SUBSYS=INIT,ENV tells the cards)",
            debug,
        )
    sizes = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
    said: Said | None = next((launch.env[name] for name in sizes if name in launch.env), None)
    if said is None or said.value == "0":
        yield found(
            check,
            Severity.WARNING,
            "the flight recorder is not on: after a hang nobody can tell which rank never came.",
            "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            said,
        )
