"""Remembers what the driver prints once per GPU, so that a later Xid can be tied to its card."""

from collectors.kernel_fields import KernelFields

__all__ = ["GpuIdentities"]


class GpuIdentities:
    """What the driver said once about each GPU, for the Xids that come later."""

    def __init__(self) -> None:
        self._gpus: dict[tuple[str | None, str], dict[str, str]] = {}
        self._announced: dict[str | None, str] = {}
        self._drivers: dict[str | None, str] = {}

    def learn(self, fields: KernelFields, host: str | None) -> None:
        """Keep what a nvrm line tells: the UUID banner, the serial after it, the driver."""
        if "driver" in fields:
            self._drivers[host] = fields["driver"]
        pci = fields.get("pci")
        if "uuid" in fields and pci is not None:
            self._gpus[host, pci] = {"uuid": fields["uuid"]}
            self._announced[host] = pci
        if "serial" in fields:
            pci = pci or self._announced.get(host)
            if pci is not None:
                self._gpus.setdefault((host, pci), {})["serial"] = fields["serial"]

    def tell(self, fields: KernelFields, host: str | None) -> None:
        """Put what is known of the GPU into the fields of its Xid."""
        if not self._gpus and not self._drivers:
            return
        known = self._gpus.get((host, fields["pci"]))
        if known is not None:
            if "uuid" in known:
                fields["uuid"] = known["uuid"]
            if "serial" in known:
                fields["serial"] = known["serial"]
        if (driver := self._drivers.get(host)) is not None:
            fields["driver"] = driver
