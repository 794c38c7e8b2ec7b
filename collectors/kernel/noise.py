"""Tells the lines that are surely noise from the others, in bulk and without parsing them.

A line it calls loud may still be noise; a line it passes over never is a record of interest.
"""

from collectors.kernel.grammar import FIRST_WORDS, LONGEST_MESSAGE

__all__ = ["loud_lines"]


def loud_lines(texts: list[str]) -> list[int]:  # noqa: C901 (flat: a call a line costs a third)
    """The indexes of the lines that need to be parsed; the rest is noise of a known shape.

    Only the commonest line prefixes are known here (dmesg with uptime, local or ISO times, syslog
    with a time without year, a bare message); every other line is loud.
    """
    loud: list[int] = []
    words = FIRST_WORDS
    for index, text in enumerate(texts):
        first = text[:1]
        if first == "[":
            start = text.find("] ") + 2
            if text[start : start + 1] == "[" or text[1:4] == "...":
                loud.append(index)  # fabric manager, printk caller, or an unknown bracket
                continue
            if text.find(" kernel: ", start, 280) > 0:
                loud.append(index)  # journalctl -o short-monotonic
                continue
        elif text[19:20] == ",":
            start = 33
        elif text[3:4] == " " and text[12:13] == ":":
            start = text.find(" kernel: ", 15) + 9
            if start == 8:  # noqa: PLR2004 (find's -1, plus 9: not the kernel's)
                if text.find("]: ", 17, 120) < 0 or "fabricmanager" in text:
                    loud.append(index)
                continue
            if text[start : start + 1] == "[":
                start = text.find("] ", start) + 2
        else:
            loud.append(index)
            continue
        while text[start : start + 1] == " ":
            start += 1
        blank = text.find(" ", start)
        word = text[start:blank]
        if (
            word in words
            or ":" in text[blank + 5 : blank + 7]
            or "Xid" in text
            or "NVRM:" in text
            or "oom-kill" in text
            or "]: segfault at " in text
            or "[Hardware" in word
            or len(text) > LONGEST_MESSAGE
        ):
            loud.append(index)
    return loud
