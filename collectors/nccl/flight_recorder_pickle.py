"""Reads a pickle of plain data and nothing else: no module is looked up, nothing is called.

PyTorch writes its flight recorder dumps with a pickler of its own (protocol 2: dicts, lists,
tuples, strings, numbers). The standard unpickler is not used at all, since a dump lies where
anybody on the node may write. Here an opcode that names, calls or builds an object ends the
reading, and what can grow without bytes in the file (memo, containers, big numbers) is bounded.
"""

import struct
from collections.abc import Callable
from typing import Any

__all__ = ["CONTAINERS_MAX", "MEMO_MAX", "OPCODES_MAX", "PickleError", "TruncatedError", "load"]

#: Lists, dicts and tuples in one pickle; each costs memory far beyond its one byte in the file.
CONTAINERS_MAX = 400_000
#: Opcodes in one pickle, of which each may make a value: a short text costs sixty bytes.
OPCODES_MAX = 2_000_000
#: Values that are remembered under a number.
MEMO_MAX = 400_000
#: Marks within marks: a dump nests seven deep.
_MARKS_MAX = 200
#: Protocol of the standard library today; a higher one is unknown.
_PROTOCOL_MAX = 5
#: Bytes of the longest whole number: PyTorch writes eight.
_LONG_BYTES = 8

_MARK, _STOP = 0x28, 0x2E
_FORBIDDEN = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
}


class PickleError(ValueError):
    """Not a pickle of plain data; the message is one sentence."""


class TruncatedError(PickleError):
    """The pickle ends before its end: it is still being written, or its writer died."""


class _Machine:
    """The stack machine of a pickle, cut down to what plain data needs."""

    __slots__ = ("at", "containers", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self) -> Any:  # noqa: ANN401 (whatever the file holds)
        data, handlers = self.data, _HANDLERS
        size = len(data)
        for _ in range(OPCODES_MAX):
            if self.at >= size:
                raise TruncatedError(f"the pickle ends after {size} bytes without its end mark")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.stack.pop()
            handler = handlers[code]
            if handler is None:
                raise PickleError(self._refusal(code))
            handler(self)
        raise PickleError(f"the pickle holds more than {OPCODES_MAX} opcodes")

    def _refusal(self, code: int) -> str:
        at = self.at - 1
        name = _FORBIDDEN.get(code)
        if name is not None:
            return f"the pickle asks for a Python object at byte {at} ({name}), which is refused"
        return f"byte {at} (0x{code:02x}) is no opcode of a pickle of plain data"

    def take(self, count: int) -> bytes:
        start = self.at
        self.at = end = start + count
        if end > len(self.data):
            raise TruncatedError(f"the pickle ends after {len(self.data)} bytes inside a value")
        return self.data[start:end]

    def count(self) -> None:
        self.containers += 1
        if self.containers > CONTAINERS_MAX:
            raise PickleError(f"the pickle holds more than {CONTAINERS_MAX} containers")

    def proto(self) -> None:
        version = self.take(1)[0]
        if version > _PROTOCOL_MAX:
            raise PickleError(f"pickle protocol {version} is unknown")

    def frame(self) -> None:
        self.take(8)

    def mark(self) -> None:
        if len(self.marks) >= _MARKS_MAX:
            raise PickleError(f"the pickle nests deeper than {_MARKS_MAX}")
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def none(self) -> None:
        self.stack.append(None)

    def true(self) -> None:
        self.stack.append(True)

    def false(self) -> None:
        self.stack.append(False)

    def int1(self) -> None:
        self.stack.append(self.take(1)[0])

    def int2(self) -> None:
        self.stack.append(int.from_bytes(self.take(2), "little"))

    def int4(self) -> None:
        self.stack.append(int.from_bytes(self.take(4), "little", signed=True))

    def long1(self) -> None:
        count = self.take(1)[0]
        if count > _LONG_BYTES:
            raise PickleError(f"the pickle holds a whole number of {count} bytes")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def float8(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def text1(self) -> None:
        self._text(1)

    def text4(self) -> None:
        self._text(4)

    def text8(self) -> None:
        self._text(8)

    def _text(self, width: int) -> None:
        raw = self.take(int.from_bytes(self.take(width), "little"))
        self.stack.append(raw.decode("utf-8", "backslashreplace"))

    def empty_list(self) -> None:
        self.count()
        self.stack.append([])

    def empty_dict(self) -> None:
        self.count()
        self.stack.append({})

    def empty_tuple(self) -> None:
        self.stack.append(())

    def tuple_(self) -> None:
        self.count()
        items = self.since_mark()
        self.stack.append(tuple(items))

    def tuple1(self) -> None:
        self._tuple(1)

    def tuple2(self) -> None:
        self._tuple(2)

    def tuple3(self) -> None:
        self._tuple(3)

    def _tuple(self, count: int) -> None:
        self.count()
        items = self.stack[-count:]
        if len(items) < count:
            raise IndexError
        self.stack[-count:] = [tuple(items)]

    def append(self) -> None:
        item = self.stack.pop()
        self._list().append(item)

    def appends(self) -> None:
        items = self.since_mark()
        self._list().extend(items)

    def _list(self) -> list[Any]:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError
        return target

    def setitem(self) -> None:
        value = self.stack.pop()
        self._put([self.stack.pop(), value])

    def setitems(self) -> None:
        self._put(self.since_mark())

    def _put(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise TypeError
        keys = items[::2]
        for key in keys:
            # Hashing a nested tuple recurses in C, as deep as the file likes.
            if type(key) is not str and type(key) is not int:
                raise TypeError
        target.update(zip(keys, items[1::2], strict=True))

    def get1(self) -> None:
        self.stack.append(self.memo[self.take(1)[0]])

    def get4(self) -> None:
        self.stack.append(self.memo[int.from_bytes(self.take(4), "little")])

    def put1(self) -> None:
        self.keep(self.take(1)[0])

    def put4(self) -> None:
        self.keep(int.from_bytes(self.take(4), "little"))

    def memoize(self) -> None:
        self.keep(len(self.memo))

    def keep(self, place: int) -> None:
        if len(self.memo) >= MEMO_MAX:
            raise PickleError(f"the pickle remembers more than {MEMO_MAX} values")
        self.memo[place] = self.stack[-1]


_OPCODES: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    _MARK: _Machine.mark,
    0x4E: _Machine.none,
    0x88: _Machine.true,
    0x89: _Machine.false,
    0x4A: _Machine.int4,
    0x4B: _Machine.int1,
    0x4D: _Machine.int2,
    0x8A: _Machine.long1,
    0x47: _Machine.float8,
    0x8C: _Machine.text1,
    0x58: _Machine.text4,
    0x8D: _Machine.text8,
    0x5D: _Machine.empty_list,
    0x7D: _Machine.empty_dict,
    0x29: _Machine.empty_tuple,
    0x74: _Machine.tuple_,
    0x85: _Machine.tuple1,
    0x86: _Machine.tuple2,
    0x87: _Machine.tuple3,
    0x61: _Machine.append,
    0x65: _Machine.appends,
    0x73: _Machine.setitem,
    0x75: _Machine.setitems,
    0x68: _Machine.get1,
    0x6A: _Machine.get4,
    0x71: _Machine.put1,
    0x72: _Machine.put4,
    0x94: _Machine.memoize,
}
_HANDLERS = [_OPCODES.get(code) for code in range(256)]


def load(data: bytes) -> Any:  # noqa: ANN401 (whatever the file holds)
    """Return the dicts, lists, tuples, strings and numbers of a pickle; nothing is executed.

    The result may share parts with itself, also in a circle: walk it to a fixed depth only.
    Raises TruncatedError when the end is missing, PickleError for anything but plain data.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, PickleError):
            raise
        raise PickleError(f"the pickle is broken at byte {machine.at}") from error
