"""The command lines that make a fault and undo it, for a POSIX shell on the host that is hit.

Only words that we quote get into a line. To undo twice, or what was never done, does no harm.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from evidence.identity import normalise_pci
from ringfence.drills.plan import Action, DrillError, Inject, Plan

__all__ = ["Lines", "filled", "lines"]

# `S-506b4b0300a10040`, `H-98039b0300500004`
_SIMULATED = re.compile(r"[SHR]-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Lines:
    """One command line for the fault and one to undo it; None where nothing is to be undone."""

    inject: str
    undo: str | None = None


def filled(words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """Words with their placeholders filled in."""
    return tuple(word.format_map(values) for word in words)


def lines(plan: Plan, values: Mapping[str, str]) -> Lines:
    """The command lines of a drill. Raises DrillError where its action lacks something."""
    inject = plan.inject
    match inject.action:
        case Action.KILL_RANK:
            return Lines(f"kill -KILL {_process(inject, values)}")
        case Action.STOP_AGENT:
            return _stop(inject, values)
        case Action.LOSE_GPU:
            return _lose(inject, values)
        case Action.CUT_LINK:
            return _cut(inject, values)
        case Action.PROGRAM:
            if not inject.inject:
                raise DrillError("The action program needs inject = [...], and mostly undo = [...]")
            undo = filled(inject.undo, values)
            return Lines(shlex.join(filled(inject.inject, values)), shlex.join(undo) or None)


def _text(text: str, values: Mapping[str, str]) -> str:
    return shlex.quote(text.format_map(values))


def _process(inject: Inject, values: Mapping[str, str]) -> str:
    """A process's id, as the shell finds it: of those that match, the newest is no launcher."""
    if (inject.pid_file is None) == (inject.pattern is None):
        raise DrillError(f"The action {inject.action} needs one of pid_file and pattern.")
    if inject.pid_file is not None:
        return f'"$(cat {_text(inject.pid_file, values)})"'
    return f'"$(pgrep -n -f -- {_pattern(inject)})"'


def _pattern(inject: Inject) -> str:
    """A pattern that does not match the command line that it stands in itself."""
    pattern = inject.pattern or ""
    if not (pattern[:1].isalnum() or pattern[:1] == "/"):
        raise DrillError(f"pattern {pattern!r} must begin with a letter, a digit or a slash.")
    return shlex.quote(f"[{pattern[0]}]{pattern[1:]}")


def _stop(inject: Inject, values: Mapping[str, str]) -> Lines:
    if inject.unit is not None:
        unit = _text(inject.unit, values)
        return Lines(f"systemctl stop {unit}", f"systemctl start {unit}")
    process = _process(inject, values)
    # The newest may be another one by then, and who is not stopped does not mind.
    undo = f"pkill -CONT -f -- {_pattern(inject)}" if inject.pattern else f"kill -CONT {process}"
    return Lines(f"kill -STOP {process}", undo)


def _lose(inject: Inject, values: Mapping[str, str]) -> Lines:
    if inject.nvml_control is not None and inject.slot is not None:
        return _lose_in_stand_in(inject.nvml_control.format_map(values), inject.slot, values)
    if inject.kernel_log is None or inject.pci is None:
        raise DrillError("lose-gpu needs pci and kernel_log, or slot and nvml_control.")
    try:
        pci = normalise_pci(inject.pci.format_map(values))[0]
    except ValueError as error:
        raise DrillError(f"lose-gpu: {error}") from error
    mark = f"(ringfence drill {values['id']})"
    said = (
        f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, "
        f"GPU has fallen off the bus. {mark}"
    )
    over = f"ringfence: the drill {values['id']} is over, {pci} never left the bus"
    log = inject.kernel_log.format_map(values)
    return Lines(_say(log, said, values["short"]), _say(log, over, values["short"]))


def _say(log: str, text: str, host: str) -> str:
    """A line that appends to a kernel log, as the kernel's ring or a syslog daemon writes it."""
    if log.startswith("/dev/"):
        return f"printf '<4>%s\\n' {shlex.quote(text)} > {shlex.quote(log)}"
    time = '"$(date -u +%Y-%m-%dT%H:%M:%S.%6N+00:00)"'
    return (
        f"printf '%s %s kernel: %s\\n' {time} {shlex.quote(host)} {shlex.quote(text)} "
        f">> {shlex.quote(log)}"
    )


def _lose_in_stand_in(control: str, slot: int, values: Mapping[str, str]) -> Lines:
    """Every call about one card answers GPU_IS_LOST (15); the file as it was is kept beside it."""
    now, before, beside = (
        shlex.quote(control + more) for more in ("", f".{values['id']}", f".{values['id']}.new")
    )
    row = f"gpu.{slot}.all"
    inject = (
        f"cp -p {now} {before} && grep -v '^{row} = ' {now} > {beside} && "
        f"echo '{row} = !15' >> {beside} && mv {beside} {now}"
    )
    return Lines(inject, f"if [ -e {before} ]; then mv {before} {now}; fi")


def _cut(inject: Inject, values: Mapping[str, str]) -> Lines:
    if inject.console is None or inject.node is None or inject.port is None:
        raise DrillError("cut-link needs console (of ibsim), node and port; or be a program.")
    node = inject.node.format_map(values)
    if not _SIMULATED.fullmatch(node):
        raise DrillError(f"cut-link: node {node!r} is none of ibsim, like S-506b4b0300a10040.")
    port = str(inject.port).format_map(values)
    if not port.isdecimal():
        raise DrillError(f"cut-link: port {port!r} is no number.")
    end = f'"{node}"[{port}]'
    console = _text(inject.console, values)
    return Lines(
        f"printf '%s\\n' {shlex.quote(f'Unlink {end}')} > {console}",
        f"printf '%s\\n' {shlex.quote(f'ReLink {end}')} > {console}",
    )
