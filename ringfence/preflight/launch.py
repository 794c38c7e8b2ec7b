"""Reads launch scripts and configs into what the checks ask about; nothing in them is executed.

A value that only the shell can know (``$SLURM_NNODES``, ``$(hostname)``) stays as it is written.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.preflight import shell

__all__ = ["Launch", "LaunchError", "Said", "read"]

#: A launch script is short; what is larger is something else.
_LARGEST = 4 * 1024 * 1024

# #SBATCH --time=02:00:00 -N 16  # four hours
_SBATCH = re.compile(r"^#SBATCH\s+(-.*?)(?:\s#.*)?$")
_SBATCH_BARE = frozenset(
    {"no-kill", "k", "requeue", "no-requeue", "exclusive", "contiguous", "overcommit", "O", "hold"}
    | {"H", "oversubscribe", "s", "spread-job", "use-min-nodes", "reboot", "wait", "W", "parsable"}
)
# NCCL_DEBUG=WARN before a program: of env, docker run -e, srun --export=ALL,NCCL_DEBUG=WARN
_GIVEN = re.compile(r"(?:--(?:export|env)=)?(?:ALL,)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
# exp_manager.resume_if_exists=True, ++model.x=1: an override of Hydra's
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_SHORT = {"N": "nodes", "n": "ntasks", "t": "time", "p": "partition", "J": "job-name"}

#: torchrun's flags without a value; all others take one.
_TORCHRUN_BARE = frozenset({"standalone", "no-python", "module", "m", "run-path", "help"})
_DEEPSPEED_BARE = frozenset(
    {"module", "no-python", "no-local-rank", "elastic-training", "force-multi", "no-ssh"}
)
_ACCELERATE_BARE = frozenset(
    {"multi-gpu", "use-fsdp", "use-deepspeed", "use-megatron-lm", "no-python", "module", "m"}
)
_SRUN_BARE = frozenset({"no-kill", "label", "l", "exclusive", "overlap", "unbuffered", "u", "k"})
_SRUN_SHORT_VALUE = frozenset({"N", "n", "c", "t", "p", "w", "x", "J", "o", "e", "m", "K", "W"})


class LaunchError(Exception):
    """A file is no launch script or config; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Said:
    """One value and where it is written; ``line`` from 1."""

    value: str
    file: str
    line: int


@dataclass(slots=True)
class Launch:
    """What the files say, by name: flags have dashes and no leading ones (``rdzv-backend``).

    ``launcher`` is torchrun, deepspeed, accelerate, or None; ``config`` has the leaves of JSON
    configs by dotted key; ``trainer`` what stands behind the training program.
    """

    files: list[str] = field(default_factory=list)
    launcher: str | None = None
    env: dict[str, Said] = field(default_factory=dict)
    flags: dict[str, Said] = field(default_factory=dict)
    trainer: dict[str, Said] = field(default_factory=dict)
    slurm: dict[str, Said] = field(default_factory=dict)
    srun: dict[str, Said] = field(default_factory=dict)
    config: dict[str, Said] = field(default_factory=dict)

    @property
    def batch(self) -> bool:
        """Whether Slurm starts it."""
        return bool(self.slurm) or bool(self.srun)

    @property
    def says_anything(self) -> bool:
        """Whether anything in the files starts or describes a training."""
        return bool(self.launcher or self.flags or self.trainer or self.slurm or self.config)


def read(paths: Iterable[Path]) -> Launch:
    """Read scripts (shell, Slurm batch) and JSON configs, later files over earlier ones.

    Raises LaunchError for a file that cannot be read, or when none of them launches anything.
    """
    launch = Launch()
    for path in paths:
        text = _text(path)
        launch.files.append(str(path))
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            _read_json(launch, str(path), text, 1, must=True)
        else:
            _read_script(launch, str(path), text)
    if not launch.says_anything:
        raise LaunchError(
            f"{', '.join(launch.files)}: starts no training that is known here "
            "(torchrun, deepspeed, accelerate, srun, a DeepSpeed config)"
        )
    return launch


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error
    if len(content) > _LARGEST or b"\0" in content:
        raise LaunchError(f"{path}: is no launch script or config")
    return content.decode("utf-8", "replace")


# --- JSON ---------------------------------------------------------------------------------------


def _read_json(launch: Launch, file: str, text: str, line: int, *, must: bool) -> None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if must:
            raise LaunchError(f"{file}: is not JSON: {error}") from error
        return
    if not isinstance(content, dict):
        if must:
            raise LaunchError(f"{file}: holds no JSON object")
        return
    for key, value in _leaves(content):
        last = key.rpartition(".")[2]
        before = text.partition(f'"{last}"')[0]
        launch.config[key] = Said(value, file, line + before.count("\n"))


def _leaves(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(value) if not isinstance(value, str) else value


# --- Scripts ------------------------------------------------------------------------------------


def _read_script(launch: Launch, file: str, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SBATCH.match(line):
            for name, value, _ in _flags(found[1].split(), _SBATCH_BARE, None)[0]:
                launch.slurm[_SHORT.get(name, name)] = Said(value, file, number)
    script = shell.read(text)
    for name, (value, number) in script.variables.items():
        launch.env[name] = Said(value, file, number)
    for body, number in script.documents:
        _read_json(launch, file, body, number, must=False)
    for command in script.commands:
        _read_command(launch, file, command, script)


def _read_command(launch: Launch, file: str, command: shell.Command, script: shell.Script) -> None:
    words = command.words
    launch.env |= {name: Said(value, file, command.line) for name, value in command.assigned}

    def said(value: str, word: str) -> Said:
        return Said(value, file, script.line_of(word, command))

    if "srun" in words:
        after = words[words.index("srun") + 1 :]
        for name, value, word in _flags(after, _SRUN_BARE, _SRUN_SHORT_VALUE)[0]:
            launch.srun[name] = said(value, word)
    start = _launcher(words)
    program = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    given = _given(words[: program if start is None else start[1]])
    launch.env = {name: said(value, word) for name, value, word in given} | launch.env
    if start is None:
        if program is not None and words[0] not in {"cp", "cat", "ls", "echo", "rm", "chmod"}:
            for name, value, word in _flags(words[program + 1 :], frozenset(), None)[0]:
                launch.trainer[name] = said(value, word)
        return
    launcher, first, bare = start
    launch.launcher = launcher
    found, rest = _flags(words[first:], bare, frozenset("mr"), ends=True)
    for name, value, word in found:
        launch.flags[name] = said(value, word)
    for name, value, word in _flags(rest[1:], frozenset(), None)[0]:
        launch.trainer[name] = said(value, word)


def _given(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Variables that words before a program give it: name, value, as written."""
    for word in words:
        if given := _GIVEN.fullmatch(word):
            yield given[1], given[2], word


def _launcher(words: list[str]) -> tuple[str, int, frozenset[str]] | None:
    """The launcher's name, where its flags begin, and which of them stand alone."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in {"torchrun", "torch.distributed.run", "torch.distributed.launch"}:
            return "torchrun", index + 1, _TORCHRUN_BARE
        if name == "deepspeed":
            return "deepspeed", index + 1, _DEEPSPEED_BARE
        if name == "accelerate" and words[index + 1 : index + 2] == ["launch"]:
            return "accelerate", index + 2, _ACCELERATE_BARE
    return None


def _flags(
    words: list[str],
    bare: frozenset[str],
    short: frozenset[str] | None,
    *,
    ends: bool = False,
) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Flags as (name, value, as written), and the words from the first that is none.

    ``bare`` are flags without a value, ``short`` the letters that take one (None: a value is
    whatever does not look like a flag). ``ends`` False goes on behind words that are no flags.
    """
    found: list[tuple[str, str, str]] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_flag(word):
            if ends or short is not None:
                return found, words[index - 1 :]
            if override := _OVERRIDE.fullmatch(word):
                found.append((override[1].replace("_", "-"), override[2], word))
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-") if word.startswith("--") else name
        takes = word.startswith("--") or short is None or name in short
        if not equals and takes and name not in bare:
            following = words[index] if index < len(words) else ""
            if following and not _is_flag(following):
                value = following
                index += 1
        found.append((name, value, word))
    return found, []


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))
