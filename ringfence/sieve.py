"""Finds the lines of a log that may matter, in large blocks, so that the rest is never parsed.

A line it calls a candidate may still be noise; a line it passes over is one that the parser itself
would have dropped. It knows the parsers' words; tests hold it to them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from collectors.follow import Line
from collectors.kernel.stream import MAX_LINE

__all__ = ["KERNEL", "NCCL", "Sieve", "candidates"]

#: So many candidates in one block, and it is no noise: then every line is parsed.
_MANY = 4096


@dataclass(frozen=True, slots=True)
class Sieve:
    """``marks`` are the expressions of which a candidate has one.

    Each begins with one plain word and only then branches: so the search for it runs at the speed
    of a search for that word, and all of them together are faster than one expression by far. What
    one of ``pairs`` marks is a candidate only where the line has one of its other words too. A
    block that holds one of ``whole`` is parsed line by line.
    """

    marks: tuple[re.Pattern[bytes], ...]
    pairs: tuple[tuple[re.Pattern[bytes], tuple[bytes, ...]], ...] = ()
    whole: tuple[bytes, ...] = ()

    def starts(self, block: bytes) -> Sequence[int] | None:
        """Where the candidates among the block's lines begin, in order; None: parse them all."""
        if any(block.startswith(one[1:]) or one in block for one in self.whole):
            return None
        found = set(_long_lines(block))
        for mark, words in (*((mark, ()) for mark in self.marks), *self.pairs):
            match = mark.search(block)
            while match is not None:
                start = block.rfind(b"\n", 0, match.start()) + 1
                end = block.find(b"\n", match.start())
                line = block[start : end if end >= 0 else None] if words else b""
                if not words or any(word in line for word in words):
                    found.add(start)
                if end < 0:
                    break
                if len(found) > _MANY:
                    return None
                match = mark.search(block, end)
        return sorted(found)


def _long_lines(block: bytes) -> Iterator[int]:
    """Where lines begin that are too long to be read whole: the parser says so in a record."""
    at, size = 0, len(block)
    while size - at > MAX_LINE:
        end = block.rfind(b"\n", at, at + MAX_LINE)
        if end < 0:
            yield at
            end = block.find(b"\n", at + MAX_LINE)
            if end < 0:
                return
        at = end + 1


def _marks(*expressions: bytes) -> tuple[re.Pattern[bytes], ...]:
    return tuple(map(re.compile, expressions))


#: Words of the kernel's grammar. A block with journal entries in JSON is not looked through: what
#: they say may be written as numbers.
KERNEL = Sieve(
    _marks(
        rb"N(?:VRM|VSwitch|ETDEV W)",
        rb"nvrm",
        rb"Xid",
        rb"EDAC ",
        rb"INFO: ",
        rb"Memory ",
        rb"Out ",
        rb"\[Hardware",
        rb"infiniband ",
        rb"mce:",
        rb"peermem",
        rb"oom",
        rb"\]: segfault at ",
        rb"traps: ",
        rb"fabricmanager",
        # pcieport 0000:00:03.0: AER: ...   /   mlx5_core 0000:65:00.0 ens15np0: ...
        rb":[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7][: ]",
        # [Feb 27 2025 15:10:02] [ERROR] [tid 12727] ...
        rb"\] \[(?:FATAL|CRITICAL|ERROR|WARNING)\]",
    ),
    whole=(b"\n{",),
)

#: Words of `collectors.nccl.grammar.relevant`, and those of NCCL's lines that can mean anything.
NCCL = Sieve(
    _marks(
        rb"G(?:roup|PU is lost|KILL)",  # ProcessGroup, SIGKILL
        rb"M(?:ISMATCH|PLETE)",  # INCOMPLETE
        rb"D(?:EAD|A_ERR)",  # CUDA_ERR
        rb"T(?:raceback|rainer\.fit|orch\] Sav)",
        rb"x(?:ception|itcode)",
        rb"rr(?:or|upt)",
        rb"ail",
        rb"nnect",
        rb"llective",
        rb"gnal",
        rb"lastic",
        rb"zvous",
        rb"srun",
        rb"bprocess",
        rb"ker group",
        rb"imed out",
        rb"return code",
        rb"NCCL (?:WARN|version|INFO (?:Boot|NET/|Init|MNNVL b|RAS |NCCL v|(?:nccl\w+ )?comm 0"
        rb"|\[Rank|\[Service|[\w./\-]+:\d))",
    ),
    pairs=(
        (re.compile(rb"raining "), (b" finished", b" done", b" complete")),
        (re.compile(rb"checkpoint"), (b"aving ", b"aved ")),
    ),
)


def candidates(blocks: Iterable[bytes], sieve: Sieve) -> Iterator[list[Line]]:
    """The candidates of each block, numbered and cut as `collectors.kernel` does it.

    A block ends with the end of a line. Each line of an event that is printed in pieces is a
    candidate itself.
    """
    offset = number = 0
    for block in blocks:
        lines: list[Line] = []
        at, size = 0, len(block)
        starts = sieve.starts(block)
        for start in (size,) if starts is None else (*starts, size):
            if starts is not None:
                number += block.count(b"\n", at, start)
                at = start
            while at < size and (at == start or starts is None):
                at, line = _line(block, at, number, offset)
                lines.append(line)
                number += 1
        offset += size
        if lines:
            yield lines


def _line(block: bytes, at: int, before: int, offset: int) -> tuple[int, Line]:
    """Where the line behind the one at ``at`` begins, and that line, number ``before`` + 1."""
    end = block.find(b"\n", at) + 1 or len(block)
    data = block[at:end]
    cut = end - at > MAX_LINE
    data = data[:MAX_LINE] if cut else data.rstrip(b"\r\n")
    return end, Line(data, offset + at, before + 1, cut)
