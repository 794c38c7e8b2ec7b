r"""Where a node stands: rack, leaf switch, pool and NVLink domain, from what the site has.

Four sources, the first that knows a name wins it: the setting itself, a label file, a mapping
file, a pattern of host names. None of them is required, and a broken one costs only what it knew.

A **mapping file** has a line a host, separated by blanks, or by commas: ``host rack [leaf [pool
[nvlink_domain]]]``; ``-`` leaves a place out and ``#`` begins a comment. A host that is listed by
its full name is found by its short one and the other way round.

A **label file** is what Kubernetes' downward API writes: ``key="value"`` lines. The last part of
a key, behind ``/``, tells the place: ``topology.kubernetes.io/rack="r12"``.

A **pattern** is a regular expression that the whole host name fits, with groups named ``rack``,
``leaf``, ``pool`` or ``nvlink_domain``: ``hgx-(?P<rack>r\d+)-n\d+``.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["PLACES", "Place", "PlaceFinder", "from_labels", "from_mapping", "from_pattern"]

_LOG = logging.getLogger(__name__)

#: The largest mapping of a cluster: 100,000 hosts at 80 bytes; more is no mapping file.
_MAX_BYTES = 8 << 20

#: The last part of a label's key, and the place it names. NVIDIA's topology labels and those of
#: GPU feature discovery (nvidia.com/gpu.clique is the NVLink domain and clique of an NVL72).
_LABELS = {
    "rack": "rack",
    "topology-rack": "rack",
    "leaf": "leaf",
    "leaf-switch": "leaf",
    "pool": "pool",
    "node-pool": "pool",
    "nodepool": "pool",
    "nvlink_domain": "nvlink_domain",
    "nvlink-domain": "nvlink_domain",
    "gpu.clique": "nvlink_domain",
    "accelerator": "nvlink_domain",
}
#: network.topology.nvidia.com/accelerator names the NVLink domain; other owners mean a card's type.
_ONLY_OF = {"accelerator": "network.topology.nvidia.com"}

# topology.kubernetes.io/rack="r12"
_LABEL = re.compile(r'(?:(?P<owner>[^\s/="]+)/)?(?P<name>[^\s/="]+)=(?P<value>"(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node stands, from its configuration: what a fault domain may widen to."""

    rack: str | None = None
    leaf: str | None = None
    pool: str | None = None
    nvlink_domain: str | None = None

    def or_else(self, other: "Place") -> "Place":
        """This place, with what it leaves out taken from another."""
        return Place(*(getattr(self, name) or getattr(other, name) for name in PLACES))


#: What can be known of a place.
PLACES = tuple(one.name for one in fields(Place))


def from_mapping(lines: Iterable[str], host: str) -> Place:
    """Return what a mapping file says of a host; an exact name wins over one by its first label."""
    wanted, short = host.lower(), host.lower().partition(".")[0]
    near = Place()
    for line in lines:
        words = [word for word in re.split(r"[,\s]+", line.partition("#")[0].strip()) if word]
        if len(words) < 2:  # noqa: PLR2004 (a host and its rack)
            continue
        place = Place(*(None if word == "-" else word for word in words[1 : len(PLACES) + 1]))
        name = words[0].lower()
        if name == wanted:
            return place
        if name.partition(".")[0] == short and "." not in min(name, wanted, key=len):
            near = place
    return near


def from_labels(lines: Iterable[str]) -> Place:
    """Return what a file of labels says; a key that names no place is passed over."""
    found: dict[str, str] = {}
    for line in lines:
        label = _LABEL.fullmatch(line.strip())
        if label is None or label["name"] not in _LABELS:
            continue
        if _ONLY_OF.get(label["name"], label["owner"]) != label["owner"]:
            continue
        try:
            value = str(json.loads(label["value"]))
        except ValueError:
            continue
        if value:
            found.setdefault(_LABELS[label["name"]], value)
    return Place(**found)


def from_pattern(pattern: str, host: str) -> Place:
    """Return what a host's name tells by a regular expression; nothing where it does not fit."""
    found = re.compile(pattern).fullmatch(host)
    told: Mapping[str, str | None] = {} if found is None else found.groupdict()
    return Place(**{name: told[name] or None for name in PLACES if name in told})


class PlaceFinder:
    """Finds a host's place, and finds it again when a file has changed."""

    def __init__(
        self,
        host: str,
        given: Place,
        *,
        rack_file: Path | None = None,
        rack_pattern: str | None = None,
        label_file: Path | None = None,
    ) -> None:
        """``given`` wins over everything that is found."""
        self._host = host
        self._given = given
        self._named = Place() if rack_pattern is None else from_pattern(rack_pattern, host)
        self._files = (label_file, rack_file)
        self._seen: tuple[object, ...] | None = None
        self._place = given
        self._said: dict[Path, str] = {}

    def __call__(self) -> Place:
        """The place now; files are read anew when they were written. Never raises."""
        seen = tuple(_stamp(path) for path in self._files)
        if seen != self._seen:
            self._seen = seen
            label_file, rack_file = self._files
            labels = from_labels(self._lines(label_file))
            mapped = from_mapping(self._lines(rack_file), self._host)
            self._place = self._given.or_else(labels).or_else(mapped).or_else(self._named)
        return self._place

    def _lines(self, path: Path | None) -> list[str]:
        if path is None:
            return []
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            return self._left_out(path, error.strerror or str(error))
        if len(data) > _MAX_BYTES:
            return self._left_out(path, f"it is larger than {_MAX_BYTES >> 20} MiB")
        self._said.pop(path, None)
        return data.decode("utf-8", "replace").splitlines()

    def _left_out(self, path: Path, why: str) -> list[str]:
        if self._said.get(path) != why:
            self._said[path] = why
            _LOG.warning("%s tells nothing of this node's place: %s", path, why)
        return []


def _stamp(path: Path | None) -> tuple[int, ...] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
