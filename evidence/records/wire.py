"""The shape shared by everything on the wire."""

from enum import StrEnum
from typing import Self

from msgspec import Struct

__all__ = ["OpenEnum", "Wire"]


class Wire(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema"):
    """Shape shared by everything on the wire: immutable, keyword-only, defaults left out."""


class OpenEnum(StrEnum):
    """Names to which a newer minor version may add: one that we do not know is read as it stands.

    It is a member that is none of ours: no rule asks for it, and it is written as it was read. Only
    for what is **observed** or told along with a decision. What says what is to be done (action,
    level, status, domain kind) stays closed: a reader that does not know it must not go on.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member

    @classmethod
    def known(cls, value: str) -> Self:
        """The member of that value; raises ValueError for one that is not in this build."""
        if value not in cls._value2member_map_:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}")
        return cls(value)
