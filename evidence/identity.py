"""One spelling for each thing a record may name: PCI addresses, domains, record and command ids.

The kernel, NVML, NCCL and InfiniBand each name the same card differently; they meet here.
"""

import hashlib
import re

__all__ = ["bus_id_to_pci", "digest", "normalise_pci"]

# `PCI:0000:3B:00`, `0000:3b:00.0`, NVML's `00000000:3B:00.0`, VMD's five-digit `10000:01:00.0`.
_PCI = re.compile(
    r"(?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?\Z",
)


def normalise_pci(text: str) -> tuple[str, int | None]:
    """Split a PCI address into its normal form and its function.

    Returns ``(address, function)``: the address as ``dddd:bb:dd`` in lower case, the domain at
    least four digits and without further leading zeros; the function, or None when the text has
    none (an Xid line has none, an SXid line has one).

    Raises ValueError when the text is not a PCI address.
    """
    found = _PCI.match(text.strip())
    if found is None:
        raise ValueError(f"not a PCI address: {text!r}")
    domain, bus, device, function = found.groups()
    address = f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}"
    return address, None if function is None else int(function)


def bus_id_to_pci(bus_id: str) -> str:
    """Turn NCCL's ``busId`` into a normal PCI address, its function left out.

    NCCL prints ``domain << 20 | bus << 12 | device << 4 | function`` in hex without separators:
    ``5d000`` is ``0000:5d:00``, ``1007f000`` is ``0100:7f:00`` (nccl/src/misc/utils.cc,
    ``busIdToInt64``).

    Raises ValueError when the text is not hex.
    """
    value = int(bus_id, 16)
    return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}"


def digest(*parts: object) -> str:
    """Hash parts into 24 hex digits: the same parts give the same id on every machine.

    Parts are joined by a separator that JSON text cannot hold, so ("ab", "c") and ("a", "bc")
    differ. Used for record ids (content and position) and command ids (domain, action, root
    evidence, generation).
    """
    text = "\x00".join(map(str, parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
