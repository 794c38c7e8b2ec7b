"""The shape shared by everything on the wire."""

from msgspec import Struct

__all__ = ["Wire"]


class Wire(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema"):
    """Shape shared by everything on the wire: immutable, keyword-only, defaults left out."""
