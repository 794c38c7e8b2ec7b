"""What stands in front of a kernel message in a log file: time, host, priority.

The prefix is looked at per line, so that files glued together from several sources read well.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

__all__ = ["FABRIC_MANAGER", "LinePrefix", "facility_of", "level"]

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
        start=1,
    )
}
_LEVELS = {
    name: number
    for number, name in enumerate(
        ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug"),
    )
}
#: syslog's facilities as `dmesg --decode` names them (syslog.h; 12 to 15 have no name there).
_FACILITIES = {
    name: number
    for number, name in enumerate(
        (
            *("kern", "user", "mail", "daemon", "auth", "syslog"),
            *("lpr", "news", "uucp", "cron", "authpriv", "ftp"),
        ),
    )
} | {f"local{number}": 16 + number for number in range(8)}
#: Fabric manager's own words for the kernel's levels.
_FABRIC_LEVELS = {"FATAL": 2, "CRITICAL": 2, "ERROR": 3, "WARNING": 4, "NOTICE": 5, "INFO": 6}

# [  966.503025] NVRM: ...   /   [  966.503025][  T412] NVRM: ...  (CONFIG_PRINTK_CALLER)
_UPTIME = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\](?:\s*\[\s*[TC]\d+\])? ?")
# [ T412] NVRM: ...  (what is left of the above when a blank stands between)
_CALLER = re.compile(r"\[\s*[TC]\d+\] ?")
# [Mon Aug  5 03:54:13 2024] NVRM: ...
_HUMAN = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\d{4})\] ?")
# [Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 ...
_FABRIC = re.compile(
    r"\[([A-Z][a-z]{2} [ \d]\d) (\d{4}) (\d\d:\d\d:\d\d)\] \[([A-Z]+)\] (?:\[tid \d+\] )?",
)
# [...] NVRM: ...   /   [  +0.000123] NVRM: ...  (dmesg with time deltas)
_BRACKET = re.compile(r"\[[^\]\n]{0,40}\] ?")
# 2024-11-15T05:39:15,491363+00:00 NVRM: ...   /   2024-11-15T05:39:15.491363+00:00 gpu7 kernel: ...
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:([.,])\d{1,9})?(?:Z|[+-]\d\d:?\d\d| UTC)?) ",
)
# 6,3964,206764307,-;nvidia-nvswitch2: open (major=510)
_KMSG = re.compile(r"(\d{1,4}),(\d{1,19}),(\d{1,19}),[^,;\s]*(?:,[^;]*)?;")
# 1731649155.491363 gpu7 kernel: NVRM: ...  (journalctl -o short-unix)
_UNIX = re.compile(r"(\d{9,10}\.\d{1,9}) ")
# Nov 22 01:02:03 gpu7 kernel: ...   /   Nov 22 01:02:03.491363 gpu7 kernel: ...
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(\.\d{1,6})? ")
# Fri 2024-11-15 05:39:15 UTC gpu7 kernel: ...  (journalctl -o short-full)
_WEEKDAY = re.compile(r"[A-Z][a-z]{2} (?=\d{4}-)")
# kern  :warn  : 2025-01-21T02:21:33,498559+00:00 NVRM: ...  (dmesg --decode)
_DECODED = re.compile(r"([a-z]\w{2,9})\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: ?")
# <3>[6085126.134786] NVRM: ...  (pstore, serial console)
_PRINTK = re.compile(r"<(\d{1,4})>")
# gpu7 kernel: NVRM: ...   /   kernel: NVRM: ...
_KERNEL = re.compile(r"(?:(\S{1,255}) )?(?:kernel|vmunix|klogd): ?")
# gpu7 nv-fabricmanager[2113]: ...   /   node04 systemd-networkd[2385]: ib1: Lost carrier
_PROCESS = re.compile(r"(?:(\S{1,255}) )?([^\s:\[\]]{1,64})(\[\d+\])?: ")

#: Part of the log name of the fabric manager's service (``nv-fabricmanager``).
FABRIC_MANAGER = "fabricmanager"
#: Log names of the kernel that also are the first word of its messages: no tag was printed.
_NO_TAG = ("NVRM", "nvidia-nvswitch", "nvidia-peermem", "EDAC", "mce", "INFO")
_DAY = timedelta(days=1)


def level(number: str) -> int:
    """The severity of a printk or syslog number (facility * 8 + severity), 0 the worst."""
    return int(number) & 7


def facility_of(number: str) -> int:
    """The facility of a printk or syslog number: 0 the kernel itself, else a process's."""
    return int(number) >> 3


class LinePrefix:
    """Takes the prefix off one line after the other and keeps what it said.

    After `split` the attributes speak of that line: ``host``, ``priority`` (0 to 7), ``facility``
    (syslog's), ``uptime_s``, ``seq`` (of a /dev/kmsg record), ``user`` (a process and not the
    kernel wrote it) and ``fabric_manager``. One object serves one file, since a syslog line has no
    year and a line's year follows from those before it.
    """

    #: What only a journal entry knows (see `JournalEntry`).
    boot_id = None
    source = None

    __slots__ = (
        "_dated", "_iso", "_latest", "_syslog", "_unix", "_year", "_zone",
        "fabric_manager", "facility", "host", "priority", "seq", "uptime_s", "user",
    )  # fmt: skip

    def __init__(self, *, zone: tzinfo | None = UTC, year: int | None = None) -> None:
        """Read times without a zone as of ``zone`` (None: this machine's local time).

        ``year`` is the year of the first line that has none; without it each such line is dated
        to the last time before now that fits.
        """
        self._zone = zone
        self._year = year
        self._latest: datetime | None = None
        self._dated: tuple[str, datetime | None] = ("", None)
        self._clear()

    def _clear(self) -> None:
        self.host: str | None = None
        self.priority: int | None = None
        self.facility: int | None = None
        self.uptime_s: float | None = None
        self.seq: int | None = None
        self.user = False
        self.fabric_manager = False
        self._iso: str | None = None
        self._syslog: str | None = None
        self._unix: str | None = None

    def split(self, text: str) -> str:
        """Take the prefix off ``text`` and return the message behind it."""
        self._clear()
        # The three commonest shapes are told by their columns, the rest by patterns.
        if text[19:20] == "," and text[32:33] == " " and text[10] == "T":
            self._iso = text[:32]
            return text[33:]
        if text[3:4] == " " and text[15:16] == " " and text[9] == ":" == text[12]:
            end = text.find(" kernel: ", 16, 272)
            if end > 0 and " " not in text[16:end]:
                self._syslog = text[:15]
                self.host = text[16:end]
                return self._uptime(text[end + 9 :])
        first = text[:1]
        if first == "<" and (found := _PRINTK.match(text)) is not None:
            self.priority = level(found[1])
            self.facility = facility_of(found[1])
            text = text[found.end() :]
        elif first.islower() and (found := _DECODED.match(text)) is not None:
            self.priority = _LEVELS[found[2]]
            self.facility = _FACILITIES.get(found[1])
            text = text[found.end() :]
        return self._stamp(text)

    def _stamp(self, text: str) -> str:
        first = text[:1]
        if first == "[":
            return self._bracket(text)
        if "0" <= first <= "9":
            return self._digits(text)
        if "A" <= first <= "Z":
            if (found := _SYSLOG.match(text)) is not None:
                self._syslog = found[1] + (found[2] or "")
                return self._tag(text[found.end() :], host=True)
            if (found := _WEEKDAY.match(text)) is not None:
                return self._digits(text[found.end() :])
        elif first == "k" and text[:8] == "kernel: ":
            return self._tag(text, host=False)
        return text

    def _uptime(self, text: str) -> str:
        """Take ``[  966.503025] `` off, where it is."""
        if text[:1] == "[" and (end := text.find("] ", 8, 24)) > 0:
            number = text[1:end].lstrip()
            if number[-7:-6] == "." and number.replace(".", "", 1).isdecimal():
                self.uptime_s = float(number)
                return text[end + 2 :]
        if (found := _UPTIME.match(text)) is not None:
            self.uptime_s = float(found[1])
            return text[found.end() :]
        return text

    def _bracket(self, text: str) -> str:
        rest = self._uptime(text)
        if self.uptime_s is not None:
            text = rest
            if rest[:1] == "[" and (found := _CALLER.match(rest)) is not None:
                text = rest[found.end() :]
            # journalctl -o short-monotonic goes on with host and tag
            return self._tag(text, host=False) if " kernel: " in text[:280] else text
        if (found := _HUMAN.match(text)) is not None:
            self._iso = f"{found[2]} {found[1]}"
            return text[found.end() :]
        if (found := _FABRIC.match(text)) is not None:
            self._iso = f"{found[2]} {found[1]} {found[3]}"
            self.priority = _FABRIC_LEVELS.get(found[4], 6)
            self.fabric_manager = True
            return text[found.end() :]
        if (found := _BRACKET.match(text)) is not None and found.end() < len(text):
            return text[found.end() :]
        return text

    def _digits(self, text: str) -> str:
        if (found := _ISO.match(text)) is not None:
            self._iso = found[1]
            text = text[found.end() :]
            # Only dmesg prints a comma before the fraction, and it prints neither host nor tag.
            return text if found[2] == "," else self._tag(text, host=False)
        if (found := _KMSG.match(text)) is not None:
            self.priority = level(found[1])
            self.facility = facility_of(found[1])
            self.seq = int(found[2])
            self.uptime_s = int(found[3]) / 1e6
            return text[found.end() :]
        if (found := _UNIX.match(text)) is not None:
            self._unix = found[1]
            return self._tag(text[found.end() :], host=True)
        return text

    def _tag(self, text: str, *, host: bool) -> str:
        """Take ``host tag: `` off; ``host`` says that the format always prints the host."""
        if (found := _KERNEL.match(text)) is not None:
            self.host = found[1]
            text = text[found.end() :]
            return self._uptime(text)
        found = _PROCESS.match(text)
        if found is None or (not host and found[3] is None):
            return text
        if found[2].startswith(_NO_TAG):
            self.host = found[1]
            return text[found.start(2) :]
        if host and found[1] in {"EDAC", "infiniband"}:
            return text
        self.host = found[1]
        self.user = True
        if FABRIC_MANAGER in found[2]:
            self.fabric_manager = True
        return text[found.end() :]

    def at(self, now: datetime) -> datetime | None:
        """The wall-clock time of the line in UTC; None when it has none or one that is none.

        A time without a year is dated to the past of ``now``, with a day's grace for its zone.
        """
        stamp = self._iso or self._syslog or self._unix
        if stamp is None:
            return None
        if stamp == self._dated[0]:
            return self._dated[1]
        try:
            at = self._read(stamp, now)
        except (ValueError, OverflowError, KeyError):
            at = None
        self._dated = (stamp, at)
        return at

    def _read(self, stamp: str, now: datetime) -> datetime:
        if self._syslog is not None:
            return self._without_year(stamp, now)
        if self._unix is not None:
            return datetime.fromtimestamp(float(stamp), UTC)
        if stamp[4] == " ":  # 2024 Aug  5 03:54:13
            return self._utc(_calendar(stamp[5:], int(stamp[:4])))
        at = datetime.fromisoformat(stamp.replace(" UTC", "Z"))
        if at.tzinfo is UTC:
            return at
        return self._utc(at)

    def _utc(self, at: datetime) -> datetime:
        if at.tzinfo is None and self._zone is not None:
            at = at.replace(tzinfo=self._zone)
        return at.astimezone(UTC)

    def _without_year(self, stamp: str, now: datetime) -> datetime:
        if self._year is not None:
            at = self._utc(_calendar(stamp, self._year))
            # Half a year backwards is not disorder in a log but the turn of the year.
            if self._latest is not None and self._latest - at > 180 * _DAY:
                self._year += 1
                at = self._utc(_calendar(stamp, self._year))
            self._latest = at
            return at
        # Only a log of the new year, read by a clock that is behind it, has a later year than now.
        latest = now.year + (now.month == 12)  # noqa: PLR2004 (December)
        for year in range(latest, latest - 9, -1):
            try:
                at = self._utc(_calendar(stamp, year))
            except ValueError:  # 29 February of another year
                continue
            if at <= now + _DAY:
                return at
        raise ValueError(stamp)


def _calendar(stamp: str, year: int) -> datetime:
    """``Aug  5 03:54:13`` of a year, perhaps with a fraction, without zone."""
    return datetime(  # noqa: DTZ001 (the zone is put on by the caller)
        year,
        _MONTHS[stamp[:3]],
        int(stamp[4:6]),
        int(stamp[7:9]),
        int(stamp[10:12]),
        int(stamp[13:15]),
        int(stamp[16:22].ljust(6, "0")),
    )
