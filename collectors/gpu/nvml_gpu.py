"""Reads one GPU through NVML: what tells its health every tick, what changes slowly now and then.

A value that NVML does not give is None with NVML's own reason: ``not supported`` is never zero.
What is not asked in a tick is None without a reason.

Without root NVML refuses (no permission) the SRAM error status, which is all of ``sram_*``; and the
jobs of other users' processes are known from their cgroup only. Everything else is open to every
user that may open /dev/nvidiactl and /dev/nvidia0 and its neighbours.
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from collectors.gpu.framing import HEALTH
from collectors.gpu.nvml import address, nvml_words, pynvml
from collectors.gpu.nvml_fields import Batch
from collectors.gpu.nvml_jobs import Jobs
from collectors.gpu.nvml_links import Links
from collectors.gpu.nvml_parts import mig_instances, processes
from collectors.gpu.nvml_values import (
    CALLS,
    FIELDS,
    INSTEAD,
    SLOW_CALLS,
    SLOW_FIELDS,
    SLOW_INSTEAD,
    Field,
    Value,
    one,
)
from evidence.identity import normalise_pci
from evidence.records import GpuSnapshot, GpuStatus

__all__ = ["Card", "Reading", "read_gpu"]

# NVML return codes (nvml.h, nvmlReturn_t).
_STATUS = {15: GpuStatus.LOST, 16: GpuStatus.RESET_REQUIRED}

#: Codes by which a GPU says that it never has a value: invalid argument, not supported, no
#: permission, function not found, version mismatch, deprecated. Asked again with the slow values.
_NEVER = frozenset({2, 3, 4, 13, 25, 26})

#: Codes by which a healthy GPU declines one reading: those, and corrupted inforom, in use, no
#: data, not ready, invalid state.
_DECLINED = _NEVER | {14, 19, 21, 27, 29}

#: Codes that say nothing about the value, only about the form of the call.
_FORM = frozenset({13, 25, 26})

#: A call that took longer is told in ``call_us`` of every tick. Source: own choice; the calls of a
#: healthy card cost 10 us to 5 ms.
_SLOW_CALL_US = 20_000
#: Of so many slow readings one is thorough: it asks again for what the card never had, and tells
#: what every call cost.
_THOROUGH_EVERY = 6


class Card:
    """What is known of the GPU at one index from its last readings: who it is, what it declines.

    One thread reads it at a time; ``reading`` is the reading under way or the last one.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.reading: Reading | None = None
        self.device: int | None = None
        self.uuid: str | None = None
        self.identity: dict[str, Any] = {}
        self.slow_readings = 0
        self._anew()

    def _anew(self) -> None:
        """Another card sits here: nothing that was learnt about the last one holds."""
        self.health: tuple[Any, ...] | None = None
        self.fields: tuple[Field, ...] = FIELDS
        self.batch = Batch([(field.id, 0) for field in FIELDS])
        self.slow_batch = Batch([(field.id, 0) for field in SLOW_FIELDS])
        self.calls: tuple[Value, ...] = CALLS
        self.forms: dict[str, int] = {}
        self.never: set[str] = set()
        self.links = Links()

    def named(self, values: dict[str, Any]) -> None:
        """Keep who it is, so that it is not asked every tick."""
        if values.get("uuid") != self.uuid:
            self._anew()
        self.uuid = values.get("uuid")
        self.identity = {name: values[name] for name in _IDENTITY if name in values}

    def learn(self, unread: dict[str, int]) -> None:
        """Ask from now on, between slow readings, only for what the card has."""
        never = {name for name, code in unread.items() if code in _NEVER}
        self.fields = tuple(field for field in FIELDS if field.name not in never)
        self.batch = Batch([(field.id, 0) for field in self.fields])


class _Stop(Exception):  # noqa: N818 (no error: it ends a reading)
    """The GPU is lost or needs a reset: asking further costs time and tells nothing."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def read_gpu(card: Card, jobs: Jobs, *, slow: bool = True) -> GpuSnapshot:
    """Read the GPU at a card's index; never raises for what NVML answers.

    With ``slow``, when its health changed, and when another card sits there, everything is read,
    now and then also what the card did not have before; else only what tells its health and load.
    Its status is lost (15) or reset-required (16) by any call's answer. It is ``error`` when the
    handle is refused with another code, or when more of the values of every tick fail (with a code
    by which no healthy GPU declines) than answer: one odd ``unknown error`` is a value not read, a
    card that answers little else is in trouble.
    ``read_us`` is what all calls cost, ``call_us`` what single calls or fields did, by the name of
    the first value they give.
    """
    started = time.perf_counter_ns()
    card.reading = reading = Reading(card, jobs)
    try:
        reading.take(slow=slow)
    except _Stop as stop:
        reading.fail(_STATUS[stop.code], stop.code)
    reading.asking = None
    reading.values["read_us"] = (time.perf_counter_ns() - started) // 1000
    return reading.snapshot()


class Reading:
    """The calls of one snapshot, their values and their refusals.

    ``asking`` is the call that has not returned yet.
    """

    def __init__(self, card: Card, jobs: Jobs) -> None:
        self.asking: str | None = "handle"
        self.values: dict[str, Any] = {}
        self.unread: dict[str, str] = {}
        self._card = card
        self._jobs = jobs
        self._codes: dict[str, int] = {}
        self._answered = 0
        self._troubled: Counter[int] = Counter()
        self._costs: dict[str, int] = {}
        self._least_us = _SLOW_CALL_US
        self._thorough = False

    def snapshot(self) -> GpuSnapshot:
        """What has been read so far; another thread may ask."""
        return GpuSnapshot(
            index=self._card.index,
            unread=dict(self.unread),
            call_us=dict(self._costs) or None,
            **self.values,
        )

    def take(self, *, slow: bool) -> None:
        """Make the calls; raises _Stop when the GPU is lost or needs a reset."""
        card = self._card
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(card.index)
        except pynvml.NVMLError as error:
            self.fail(_STATUS.get(error.value, GpuStatus.ERROR), error.value)
            return
        slow = self._name(handle, slow=slow) or slow
        if slow:
            self._thorough = card.slow_readings % _THOROUGH_EVERY == 0 or card.health is None
            self._least_us = 0 if self._thorough else _SLOW_CALL_US
            card.slow_readings += 1
        self._answered = 0
        self._troubled.clear()
        self._often(handle, slow=slow)
        if self._troubled.total() > self._answered:
            self.fail(GpuStatus.ERROR, self._troubled.most_common(1)[0][0])
        before = card.health
        card.health = tuple(map(self.values.get, HEALTH))
        if slow or before != card.health:
            self._seldom(handle)

    def fail(self, status: GpuStatus, code: int) -> None:
        """The GPU as a whole did not answer well."""
        self.values["status"] = status
        self.values["error"] = code

    def _name(self, handle: Any, *, slow: bool) -> bool:  # noqa: ANN401 (pynvml has no types)
        """Say who it is; ask where that may have changed, and return whether it did."""
        card = self._card
        device = address(handle)
        if device == card.device and not slow:
            self.values |= card.identity
            return False
        known = card.uuid if card.device is not None else None
        for value in _NAMES:
            self._ask(handle, value)
        card.named(self.values)
        # A name that was not read for some trouble is asked again at once.
        card.device = device if card.uuid is not None and not self._troubled else None
        return card.uuid != known

    def _often(self, handle: Any, *, slow: bool) -> None:  # noqa: ANN401
        card = self._card
        if not slow:
            self._ask_fields(handle, "fields", card.batch, card.fields)
            for value in card.calls:
                self._ask(handle, value)
            return
        self._ask_fields(handle, "fields", Batch([(field.id, 0) for field in FIELDS]), FIELDS)
        card.learn(self._codes)
        calls = [*self._instead(INSTEAD), *CALLS]
        for value in calls:
            self._ask(handle, value)
        if "retired_pages_sbe" in self.unread:
            self.unread["retired_pages"] = self.unread["retired_pages_sbe"]
        card.calls = tuple(value for value in calls if not self._never(value))

    def _seldom(self, handle: Any) -> None:  # noqa: ANN401
        card = self._card
        self._ask_fields(handle, "slow_fields", card.slow_batch, SLOW_FIELDS)
        for value in (*self._instead(SLOW_INSTEAD), *SLOW_CALLS):
            if self._thorough or value.names[0] not in card.never:
                self._ask(handle, value)
        if self._thorough:
            card.never = {name for name, code in self._codes.items() if code in _NEVER}
        if self.values.get("mig_enabled"):
            self._ask(handle, one("mig", mig_instances))
        self._ask(
            handle, Value(("nvlinks_active", "nvlinks_down", "nvlink_errors"), (self._nvlinks,))
        )
        self._ask(
            handle,
            one(
                "processes",
                *(
                    lambda handle, form=form: processes(handle, self._jobs, form)
                    for form in _PROCESS_FORMS
                ),
            ),
        )
        for group in ("ecc_locations", "throttled_ns"):
            if group not in self.values:
                self._group_unread(group)

    def _nvlinks(self, handle: Any) -> tuple[Any, ...]:  # noqa: ANN401
        return tuple(self._card.links.read(handle, self.unread).values())

    def _instead(self, calls: Iterable[Value]) -> list[Value]:
        """The calls to ask because the driver does not have their fields."""
        return [value for value in calls if self._never(value)]

    def _never(self, value: Value) -> bool:
        return self._codes.get(value.names[0], 0) in _NEVER

    def _ask(self, handle: Any, value: Value) -> None:  # noqa: ANN401
        names = value.names
        self.asking = names[0]
        began = time.perf_counter_ns()
        try:
            found = self._call(handle, value)
        except pynvml.NVMLError as error:
            self._refuse(names, error.value)
        except ValueError as error:  # an InfoROM string that is no text, a bus id that is none
            self.unread |= dict.fromkeys(names, f"unreadable: {error}")
        else:
            self._answered += 1
            if len(names) == 1:
                self._put(names[0], found)
            else:
                for name, one_found in zip(names, found, strict=True):
                    self._put(name, one_found)
        self._cost(names[0], (time.perf_counter_ns() - began) // 1000)

    def _call(self, handle: Any, value: Value) -> Any:  # noqa: ANN401
        """Ask the form that worked before, else the newest that does."""
        known = self._card.forms.get(value.names[0])
        if known is not None:
            return value.forms[known](handle)
        refused: Any = None
        for at, form in enumerate(value.forms):
            try:
                found = form(handle)
            except pynvml.NVMLError as error:
                if error.value not in _NEVER:
                    raise
                if refused is None or refused.value in _FORM:
                    refused = error
            else:
                if len(value.forms) > 1:
                    self._card.forms[value.names[0]] = at
                return found
        try:
            raise refused
        finally:
            del refused  # it holds this frame, and this frame it

    def _ask_fields(
        self,
        handle: Any,  # noqa: ANN401
        call: str,
        batch: Batch,
        fields: tuple[Field, ...],
    ) -> None:
        self.asking = call
        began = time.perf_counter_ns()
        try:
            replies = batch.ask(handle)
        except pynvml.NVMLError as error:
            for field in fields:
                self._refuse((field.name,), error.value)
        else:
            for field, reply in zip(fields, replies, strict=True):
                if reply.code:
                    self._refuse((field.name,), reply.code)
                else:
                    self._answered += 1
                    self._put(field.name, field.take(reply.number))
                if reply.latency_us:
                    self._cost(field.name, reply.latency_us)
        self._cost(call, (time.perf_counter_ns() - began) // 1000)

    def _put(self, name: str, found: Any) -> None:  # noqa: ANN401
        group, _, part = name.partition(".")
        if part:
            self.values.setdefault(group, {})[part] = found
        else:
            self.values[name] = found
        if name in self._codes:  # what the field did not have, the call did
            del self._codes[name]
            self.unread.pop(name, None)
        if name in ("retired_pages_sbe", "retired_pages_dbe"):
            both = self.values.get("retired_pages_sbe"), self.values.get("retired_pages_dbe")
            if None not in both:
                self.values["retired_pages"] = sum(both)

    def _refuse(self, names: tuple[str, ...], code: int) -> None:
        if code in _STATUS:
            raise _Stop(code)
        for name in names:
            self._codes[name] = code
            # Of a group it is said only where a healthy card would not decline.
            if code not in _NEVER or "." not in name:
                self.unread[name] = nvml_words(code)
        if code not in _DECLINED:
            self._troubled[code] += 1

    def _group_unread(self, group: str) -> None:
        codes = [code for name, code in self._codes.items() if name.startswith(f"{group}.")]
        if codes:
            self.unread[group] = nvml_words(codes[0])

    def _cost(self, name: str, spent_us: int) -> None:
        if spent_us >= self._least_us:
            self._costs[name] = spent_us


def _pci(handle: object) -> str:
    return normalise_pci(pynvml.nvmlDeviceGetPciInfo_v3(handle).busId)[0]


def _uuid(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle))


def _serial(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetSerial(handle))


def _product(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetName(handle))


_NAMES = (
    one("uuid", _uuid),
    one("pci", _pci),
    one("serial", _serial),
    one("name", _product),
)
_IDENTITY = ("uuid", "pci", "serial", "name")
_PROCESS_FORMS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
