"""The kernel log of a node: its ring, the journal, files, and what their lines say."""

from collectors.kernel.ring import (
    FileCollector,
    KmsgCollector,
    bounded_lines,
    parse_message,
    parse_stream,
)

__all__ = ["FileCollector", "KmsgCollector", "bounded_lines", "parse_message", "parse_stream"]
