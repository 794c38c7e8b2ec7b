"""Remembers what the driver prints once per GPU, so that a later Xid can be tied to its card."""

from copy import deepcopy

from msgspec import Struct, field

from collectors.kernel.fields import KernelFields

__all__ = ["Card", "GpuIdentities", "HostCards"]

_XID_GSP_TIMEOUT = 119


class Card(Struct, omit_defaults=True):
    """What the driver said of the GPU at one PCI address.

    ``rate_limited``: it prints only some of its GSP errors from now on.
    """

    uuid: str | None = None
    serial: str | None = None
    rate_limited: bool = False


class HostCards(Struct, omit_defaults=True):
    """What the driver of one host said in one boot; ``gpus`` by PCI address.

    ``announced`` is the GPU whose banner came last: the serial number in the next line is its.
    """

    boot_id: str | None = None
    driver: str | None = None
    gpus: dict[str, Card] = field(default_factory=dict)
    announced: str | None = None


class GpuIdentities:
    """What the drivers said once, for the Xids that come later; kept with a cursor as ``known``.

    A boot forgets everything of its host, and a driver that is loaded again its GPUs: it prints
    each banner anew before that GPU's first Xid, so a card that was swapped is never taken for
    the one before it.
    """

    def __init__(self, known: dict[str, HostCards] | None = None) -> None:
        self.known: dict[str, HostCards] = {} if known is None else known

    def copy(self) -> dict[str, HostCards]:
        """What is known now, for a cursor."""
        return deepcopy(self.known)

    def forget(self) -> None:
        """Forget everything: messages were lost, and a banner may have been among them."""
        self.known.clear()

    def learn(self, fields: KernelFields, host: str | None, boot_id: str | None = None) -> None:
        """Keep what a nvrm line tells: the UUID banner, the serial after it, the driver."""
        pci = fields.get("pci")
        limited = fields.get("rate_limited", False)
        if not ("driver" in fields or "uuid" in fields or "serial" in fields or limited):
            return
        cards = self._of(host, boot_id)
        if cards is None:
            cards = self.known[host or ""] = HostCards(boot_id=boot_id)
        if "driver" in fields:
            cards.driver = fields["driver"]
            cards.gpus.clear()
            cards.announced = None
        if "uuid" in fields and pci is not None:
            cards.gpus[pci] = Card(uuid=fields["uuid"])
            cards.announced = pci
        if "serial" in fields and (pci := pci or cards.announced) is not None:
            cards.gpus.setdefault(pci, Card()).serial = fields["serial"]
        if limited and pci is not None:
            cards.gpus.setdefault(pci, Card()).rate_limited = True

    def tell(self, fields: KernelFields, host: str | None, boot_id: str | None = None) -> None:
        """Put what is known of the GPU into the fields of its Xid."""
        if not self.known or (cards := self._of(host, boot_id)) is None:
            return
        if (card := cards.gpus.get(fields["pci"])) is not None:
            if card.uuid is not None:
                fields["uuid"] = card.uuid
            if card.serial is not None:
                fields["serial"] = card.serial
            if card.rate_limited and fields.get("code") == _XID_GSP_TIMEOUT:
                fields["rate_limited"] = True
        if cards.driver is not None:
            fields["driver"] = cards.driver

    def adopt(self, older: "GpuIdentities", boot_id: str) -> None:
        """Take over what an earlier part of the same boot's log told and this one did not."""
        for host, cards in older.known.items():
            mine = self.known.get(host)
            if cards.boot_id != boot_id or (mine is not None and mine.driver is not None):
                continue
            if mine is None:
                self.known[host] = cards
            else:
                mine.driver = cards.driver
                mine.gpus = cards.gpus | mine.gpus

    def _of(self, host: str | None, boot_id: str | None) -> HostCards | None:
        """The cards of a host, if they are of this boot."""
        cards = self.known.get(host or "")
        if cards is None or boot_id is None or cards.boot_id == boot_id:
            return cards
        if cards.boot_id is None:
            cards.boot_id = boot_id
            return cards
        del self.known[host or ""]
        return None
