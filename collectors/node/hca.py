"""Finds the host channel adapters of this node, and which of them sit beside which GPU.

The switch port at the other end of the cable is asked of the fabric: see `collectors.node.peers`.
"""

from collections.abc import Iterable
from pathlib import Path

from evidence.identity import normalise_pci
from evidence.records import HcaIdentity

__all__ = ["IB", "beside", "read_hcas"]

#: What sysfs says of a port that is not Ethernet.
IB = "InfiniBand"

#: A host bridge alone (`pci0000:15`) is shared by half a machine; a bridge under it is not.
_SHARED_BRIDGES = 2
_GID_WORDS = 8


def read_hcas(sysfs: Path = Path("/sys")) -> tuple[HcaIdentity, ...]:
    """Return every port of every adapter under ``/sys/class/infiniband``, by name and port.

    ``guid`` is the node GUID as InfiniBand tools print it (``0x`` and 16 hex digits), which with
    the port number names a port in the fabric; ``port_guid`` names the port alone, and only on
    InfiniBand. What cannot be read is None; a machine without adapters has none. Nothing that is
    read here asks the adapter's firmware, so none of it waits for a sick one.
    """
    found = []
    for adapter in _listed(sysfs / "class" / "infiniband"):
        guid = _guid(adapter / "node_guid")
        pci = _pci(adapter / "device")
        ports = sorted(int(port.name) for port in _listed(adapter / "ports") if port.name.isdigit())
        for at in ports:
            layer = _text(adapter / "ports" / str(at) / "link_layer")
            found.append(
                HcaIdentity(
                    name=adapter.name,
                    port=at,
                    guid=guid,
                    port_guid=_port_guid(adapter / "ports" / str(at)) if layer == IB else None,
                    pci=pci,
                    link_layer=layer,
                )
            )
    return tuple(found)


def beside(pci: str, hcas: Iterable[HcaIdentity], sysfs: Path = Path("/sys")) -> tuple[str, ...]:
    """Return the names of the adapters under the same PCIe bridge as the GPU at ``pci``.

    Those that share the deepest bridge with it; none when only the host bridge is shared.
    """
    gpu = _bridges(sysfs, pci)
    depths = {
        hca.name: _shared(gpu, _bridges(sysfs, hca.pci)) for hca in hcas if hca.pci is not None
    }
    deepest = max(depths.values(), default=0)
    if deepest < _SHARED_BRIDGES:
        return ()
    return tuple(sorted(name for name, depth in depths.items() if depth == deepest))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _guid(file: Path) -> str | None:
    # b83f:d203:00e4:1a5c
    return _as_guid((_text(file) or "").replace(":", ""))


def _port_guid(port: Path) -> str | None:
    """The port's GUID: the lower half of its first GID, whatever the subnet's prefix."""
    # fe80:0000:0000:0000:b83f:d203:00e4:1a5c
    words = (_text(port / "gids" / "0") or "").split(":")
    return _as_guid("".join(words[4:])) if len(words) == _GID_WORDS else None


def _as_guid(digits: str) -> str | None:
    try:
        value = int(digits, 16)
    except ValueError:
        return None
    return f"0x{value:016x}" if value else None


def _pci(device: Path) -> str | None:
    try:
        return normalise_pci(device.resolve(strict=True).name)[0]
    except (OSError, ValueError):
        return None


def _bridges(sysfs: Path, pci: str) -> tuple[str, ...]:
    """The way from the host bridge down to a device, itself left out."""
    try:
        path = (sysfs / "bus" / "pci" / "devices" / f"{pci}.0").resolve(strict=True)
        return path.relative_to((sysfs / "devices").resolve()).parts[:-1]
    except (OSError, ValueError):
        return ()


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    depth = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        depth += 1
    return depth
