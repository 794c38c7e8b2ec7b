"""The little of a shell script that can be read without running it: assignments and commands.

Variables with a literal value are filled in where they are used, arrays and quoted strings over
several lines too; ``$(...)`` and what the script does not assign stay as they are written.
"""

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Command", "Script", "read"]

# export NCCL_DEBUG=WARN   NNODES=${SLURM_NNODES:-4}   ARGS+=(--save /ckpt)
_ASSIGNMENT = re.compile(
    r"^(?:export\s+|declare\s+-x\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)="
)
# ${NAME}  ${NAME:-4}  ${ARGS[@]}  $NAME
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")
# "${ARGS[@]}" is as many words as the array has
_QUOTED_ARRAY = re.compile(r"\"(\$\{[A-Za-z_]\w*\[@\]\})\"")
# cat <<EOT > ds.json    cat > ds.json << 'EOF'
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
# read -r -d '' CMD <<EOF
_READ = re.compile(r"^read\s.*?([A-Za-z_]\w*)\s*$")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh"})
# -c  -lc  -xeuc
_AS_SCRIPT = re.compile(r"-[a-z]*c")
_SEPARATORS = frozenset({";", "&&", "||", "|", "&", "(", ")", "{", "}", "then", "do", "else"})
_SUBSTITUTED = "\x01"  # stands for a $(...) while words are split
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words, the variables set for it alone, and its first line."""

    words: list[str]
    assigned: list[tuple[str, str]]
    line: int
    last: int


@dataclass(slots=True)
class Script:
    """What was read; ``variables`` have their last value and line, ``documents`` are heredocs."""

    lines: list[str]
    variables: dict[str, tuple[str, int]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    documents: list[tuple[str, int]] = field(default_factory=list)

    def line_of(self, word: str, command: Command) -> int:
        """The line on which a word of a command is written, or that of the command."""
        inside = range(command.line - 1, min(command.last, len(self.lines)))
        for number in itertools.chain(inside, range(len(self.lines))):
            if word in self.lines[number] and not self.lines[number].lstrip().startswith("#"):
                return number + 1
        return command.line


def read(text: str) -> Script:
    """Read a script; never raises: what cannot be understood is left out.

    What is given to another shell (``bash -c "..."``) is a part of it.
    """
    script = Script(text.splitlines())
    for logical, first, last in _logical_lines(script):
        _take(script, logical.strip(), first, last)
    return script


def _read_inner(script: Script, text: str, outer: Command, depth: int) -> None:
    """Take the commands of a script that stands in a word of another."""
    inner = Script(text.splitlines(), script.variables, script.commands, script.documents)
    for logical, _, _ in _logical_lines(inner):
        _take(inner, logical.strip(), outer.line, outer.last, depth)


def _inner(words: list[str]) -> str | None:
    """The script that a command gives to another shell, or None."""
    for index, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in _SHELLS:
            options = itertools.takewhile(lambda one: one.startswith("-"), words[index + 1 : -1])
            for at, option in enumerate(options, index + 2):
                if _AS_SCRIPT.fullmatch(option):
                    return words[at].replace("\\$", "$")
    return None


def _logical_lines(script: Script) -> Iterator[tuple[str, int, int]]:
    """Lines with continuations, open quotes and arrays joined: (text, first line, last line)."""
    lines, index = script.lines, 0
    while index < len(lines):
        first = index
        text = _uncommented(lines[index])
        index += 1
        text, index = _joined(lines, text, index)
        if heredoc := _HEREDOC.search(text):
            begin = index
            while index < len(lines) and lines[index].strip() != heredoc[2]:
                index += 1
            script.documents.append(("\n".join(lines[begin:index]), begin + 1))
            text = text[: heredoc.start()]
            if named := _READ.match(text.strip()):
                _assign(script, named[1], "\n".join(lines[begin:index]), begin + 1, more=False)
            index += 1
        yield text, first + 1, index


def _uncommented(line: str) -> str:
    """The line without its comment: a ``#`` at the start of a word and outside of quotes."""
    quote = ""
    for index, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (index == 0 or line[index - 1].isspace()):
            return line[:index].rstrip()
    return line.rstrip()


def _joined(lines: list[str], text: str, index: int) -> tuple[str, int]:
    """A line with those that it goes on in, and the index behind them; a quote must end."""
    begun = text, index
    while index < len(lines):
        if text.endswith("\\"):
            text = text.removesuffix("\\") + " " + _uncommented(lines[index])
        elif _quote(text):
            text = f"{text}\n{lines[index].rstrip()}"
        elif _is_open(text):
            text = f"{text} {_uncommented(lines[index])}"
        else:
            return text, index
        index += 1
    return begun if _quote(text) else (text, index)


def _quote(text: str) -> str:
    """The quote that is open at the end of a text, or nothing."""
    quote, escaped = "", False
    for sign in text:
        if escaped:
            escaped = False
        elif sign == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
    return quote


def _is_open(text: str) -> bool:
    """Whether the parenthesis of an array is still open."""
    found = _ASSIGNMENT.match(text.strip())
    if found is None:
        return False
    value = text.strip()[found.end() :]
    return value.startswith("(") and value.count("(") > value.count(")")


def _take(script: Script, text: str, first: int, last: int, depth: int = 0) -> None:
    found = _ASSIGNMENT.match(text)
    array = found is not None and text[found.end() :].startswith("(")
    if found is not None and array:
        value = text[found.end() + 1 :].rpartition(")")[0]
        _assign(script, found[1], " ".join(value.split()), first, more=bool(found[2]))
        return
    for found_words in _commands(_filled(_QUOTED_ARRAY.sub(r"\1", text), script)):
        words, assigned = found_words, []
        if words[0] in {"export", "declare", "local", "readonly"}:
            words = [word for word in words[1:] if not word.startswith("-")]
        while words and (one := _ASSIGNMENT.match(words[0])):
            assigned.append((one[1], words[0][one.end() :], bool(one[2])))
            words = words[1:]
        if not words:
            for name, value, more in assigned:
                _assign(script, name, value, first, more=more)
        else:
            pairs = [(name, value) for name, value, _ in assigned]
            command = Command(words, pairs, first, last)
            script.commands.append(command)
            if depth < _DEEPEST and (inner := _inner(words)) is not None:
                _read_inner(script, inner, command, depth + 1)


def _assign(script: Script, name: str, value: str, line: int, *, more: bool) -> None:
    before = script.variables.get(name, ("", 0))[0] if more else ""
    joined = f"{before} {value}".strip() if more else value
    # A variable that names itself, PATH=/x:$PATH, would be filled in for ever.
    script.variables[name] = (joined, line)


def _filled(text: str, script: Script, depth: int = 0) -> str:
    """The text with the script's own variables filled in."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        known = script.variables.get(name)
        if known is not None and name not in known[0]:
            return known[0] if depth > _DEEPEST else _filled(known[0], script, depth + 1)
        return found[2] if found[2] is not None else found[0]

    return _VARIABLE.sub(value, text) if depth <= _DEEPEST else text


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of one logical line, as words; ``$(...)`` stays one piece of a word."""
    text, kept = _set_aside(text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        words = text.split()
    words = [_put_back(word, kept) for word in words]
    begun: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            if begun:
                yield begun
            begun = []
        else:
            begun.append(word)


def _set_aside(text: str) -> tuple[str, list[str]]:
    """Replace each ``$(...)``, nested ones included, by a mark that no shell word contains."""
    kept: list[str] = []
    while (begin := text.find("$(")) >= 0:
        depth, end = 0, len(text)
        for index in range(begin + 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[index], 0)
            if depth == 0:
                end = index + 1
                break
        kept.append(text[begin:end])
        text = f"{text[:begin]}{_SUBSTITUTED}{len(kept) - 1}{_SUBSTITUTED}{text[end:]}"
    return text, kept


def _put_back(word: str, kept: list[str]) -> str:
    for number, original in enumerate(kept):
        word = word.replace(f"{_SUBSTITUTED}{number}{_SUBSTITUTED}", original)
    return word
