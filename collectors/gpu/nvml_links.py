"""NVLink and the NVLink fabric of one GPU: which links are up, what they count, which domain.

Hopper counts replays, recoveries and CRC errors, Blackwell has the names of InfiniBand; which
kinds a GPU has is found out on its first link.
"""

import ctypes
import uuid
from typing import Any

from collectors.gpu.nvml import nvml_words, pynvml
from collectors.gpu.nvml_fields import Batch

__all__ = ["FABRIC_NAMES", "Links", "fabric_v1", "fabric_v2", "fabric_v3"]

_LINK_COUNT = 91
_STATE = 165
_INACTIVE = 0
_GONE = (15, 16)  # nvml.h: the GPU is lost, needs a reset
_MOST_LINKS = 18  # nvml.h, NVML_NVLINK_MAX_LINKS

#: Error counters by link (nvml.h, NVML_FI_DEV_NVLINK_*; the scope is the link). 161 to 163 are
#: Ampere's and Hopper's, the others Blackwell's.
_KINDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed": 206,
    "overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "integrity": 211,
    "discards": 212,
    "recovered": 213,
    "recovery_failed": 214,
    "effective": 219,
    "symbol": 221,
}
#: Counters of nvmlDeviceGetNvLinkErrorCounter (nvml.h, nvmlNvLinkErrorCounter_t).
_OLD_KINDS = {"replay": 0, "recovery": 1, "crc": 2, "crc_data": 3}

#: nvml.h, NVML_GPU_FABRIC_STATE_*.
_FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
FABRIC_NAMES = (
    "fabric_state",
    "fabric_status",
    "fabric_clique",
    "fabric_cluster_uuid",
    "fabric_health",
)


class Links:
    """The NVLinks of one GPU; finds out once what can be asked of them."""

    def __init__(self) -> None:
        self._asked: list[tuple[int, str]] | None = None
        self._batch = Batch(())

    def read(self, handle: Any, unread: dict[str, str]) -> dict[str, Any]:  # noqa: ANN401
        """Return nvlinks_active, nvlinks_down and nvlink_errors; raises pynvml.NVMLError.

        A link whose state or counter is refused is named in ``unread`` (``nvlink.3.replay``).
        """
        if self._asked is None:
            self._asked = self._find(handle)
            scopes = {"state": _STATE} | _KINDS
            self._batch = Batch([(scopes[kind], link) for link, kind in self._asked])
        if not self._asked:
            return _read_old(handle)
        states: dict[int, int] = {}
        errors: dict[str, int] = {}
        for (link, kind), reply in zip(self._asked, self._batch.ask(handle), strict=True):
            if reply.code in _GONE:
                raise pynvml.NVMLError(reply.code)
            if reply.code:
                unread[f"nvlink.{link}.{kind}"] = nvml_words(reply.code)
            elif kind == "state":
                states[link] = reply.number
            elif reply.number:
                errors[f"{link}.{kind}"] = reply.number
        return _told(states, errors)

    def _find(self, handle: Any) -> list[tuple[int, str]]:  # noqa: ANN401
        """Links and kinds that the fields have; none where the driver is older than they."""
        kinds = ["state", *_KINDS]
        first = Batch([(_LINK_COUNT, 0), (_STATE, 0), *((kind, 0) for kind in _KINDS.values())])
        try:
            count, *replies = first.ask(handle)
        except pynvml.NVMLError:
            return []
        if count.code or replies[0].code:
            return []
        had = [kind for kind, reply in zip(kinds, replies, strict=True) if not reply.code]
        return [(link, kind) for link in range(min(count.number, _MOST_LINKS)) for kind in had]


def _told(states: dict[int, int], errors: dict[str, int]) -> dict[str, Any]:
    down = tuple(sorted(link for link, state in states.items() if state == _INACTIVE))
    return {
        "nvlinks_active": len(states) - len(down),
        "nvlinks_down": down,
        "nvlink_errors": errors,
    }


def _read_old(handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Ask link by link; the first refusal ends the links, on link 0 it is the answer."""
    states: dict[int, int] = {}
    errors: dict[str, int] = {}
    for link in range(_MOST_LINKS):
        try:
            states[link] = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError:
            if link == 0:
                raise
            break
        for kind, counter in _OLD_KINDS.items():
            try:
                count = pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
            except pynvml.NVMLError:
                continue
            if count:
                errors[f"{link}.{kind}"] = count
    return _told(states, errors)


def _fabric(info: Any, health: int | None) -> tuple[Any, ...]:  # noqa: ANN401
    state = info.state & 0xFF  # one byte in nvml.h, a word in nvidia-ml-py
    words = _FABRIC_STATES[state] if state < len(_FABRIC_STATES) else f"state-{state}"
    cluster = bytes(info.clusterUuid)
    named = str(uuid.UUID(bytes=cluster)) if any(cluster) else None
    return words, info.status, info.cliqueId, named, health


def fabric_v3(handle: object) -> tuple[Any, ...]:
    """Return the values of FABRIC_NAMES; raises pynvml.NVMLError."""
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return _fabric(info, info.healthMask)


def fabric_v2(handle: object) -> tuple[Any, ...]:
    """The same from drivers before 570."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return _fabric(info, info.healthMask)


def fabric_v1(handle: object) -> tuple[Any, ...]:
    """The same from drivers before 545, which know no health."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return _fabric(info, None)
