"""Who plays in one incident: the part at fault, its node, its job, and everybody's names."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from fleet.plant import CARDS, Card, Host, Plant, Port
from fleet.scenario import Scenario, Truth, Variant

__all__ = ["Cast", "draw"]


@dataclass(frozen=True)
class Cast:
    """One incident: what is played, when, and by whom. ``it`` is the card drawn."""

    number: int
    scenario: Scenario
    variant: Variant | None
    begin: datetime
    plant: Plant
    host: Host
    it: Card
    job_hosts: tuple[Host, ...]
    job: str
    seed: int
    drawn: dict[str, int | str]

    @property
    def truth(self) -> Truth:
        """What is true, and whether it can be known here."""
        return self.scenario.told(self.variant)

    @property
    def without(self) -> tuple[str, ...]:
        """Sources that nobody reads here."""
        return () if self.variant is None else self.variant.without

    @property
    def port(self) -> Port:
        """The switch port of the card's own rail."""
        return self.host.ports[self.it.index]

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """Every node that writes anything: the part's, the job's, those that steps name."""
        named = {host.name: host for host in (self.host, *self.job_hosts)}
        for step in self.scenario.steps():
            named |= {host.name: host for host in self.hosts_of(self.cards(step.on))}
        return tuple(named.values())

    def domain(self) -> str | None:
        """The id of the part at fault, as commands name it; None where there is none."""
        it, port = self.it, self.port
        return {
            "none": None,
            "mig": f"mig:{it.host}/{it.pci}/{self.drawn['gi']}",
            "gpu": f"gpu:{it.host}/{it.pci}",
            "nvlink": f"nvlink:{it.host}/{it.pci}/{self.drawn['link']}",
            "node": f"node:{self.host.name}",
            "link": f"link:{port.switch}/{port.number}",
            "switch": f"switch:{port.switch}",
            "rack": f"rack:{self.host.rack}",
        }[self.truth.part]

    def cards(self, on: str) -> list[Card]:
        """The cards that ``on`` means, in order of host and index."""
        if on not in self._meant:
            self._meant[on] = self._mean(on)
        return self._meant[on]

    @cached_property
    def _meant(self) -> dict[str, list[Card]]:
        return {}

    def _mean(self, on: str) -> list[Card]:
        it, own = self.it, self.host.cards
        job = [card for host in self.job_hosts for card in host.cards]
        if on.startswith("pick:"):
            others = [card for card in job if card is not it]
            count = min(int(on.removeprefix("pick:")), len(others))
            return random.Random(self.seed).sample(others, count)
        rack, leaf = self.plant.racks[self.host.rack], self.plant.leaves[self.host.leaf]
        return {
            "it": [it],
            "peer": [own[(it.index + 1) % CARDS]],
            "siblings": [card for card in own if card is not it],
            "node": list(own),
            "others": [card for card in job if card is not it],
            "rail": [card for card in job if card is not it and card.index == it.index],
            "rest": [card for card in job if card.host != it.host],
            "job": job,
            "rack": [card for host in rack for card in host.cards],
            "leaf": [card for host in leaf for card in host.cards],
        }[on]

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The job's ranks by the UUID of their card."""
        return {
            card.uuid: place * CARDS + card.index
            for place, host in enumerate(self.job_hosts)
            for card in host.cards
        }

    def playing(self, on: str) -> Iterator[tuple[int, Card]]:
        """The ranks among the cards that ``on`` means, in order."""
        found = [
            (self.ranks[card.uuid], card) for card in self.cards(on) if card.uuid in self.ranks
        ]
        return iter(sorted(found, key=lambda one: one[0]))

    def names(self, card: Card) -> dict[str, object]:
        """What may stand in braces in a line about a card."""
        host = self.plant.named[card.host]
        port = host.ports[card.index]
        rank = self.ranks.get(card.uuid, card.index)
        mate = self._mate
        own: dict[str, object] = {
            "host": card.host,
            "address": host.address,
            "index": card.index,
            "pci": card.pci,
            "bus": card.bus_id,
            "uuid": card.uuid,
            "serial": card.serial,
            "root_port": card.root_port,
            "rank": rank,
            "rank_pid": 20_000 + rank,
            "size": len(self.job_hosts) * CARDS,
            "job": self.job,
            "hca": port.hca,
            "hca_guid": port.hca_guid,
            "switch": port.switch,
            "port": port.number,
            "it_rank": self.ranks.get(self.it.uuid, self.it.index),
            "it_host": self.it.host,
            "it_address": self.host.address,
            "it_index": self.it.index,
            "it_pci": self.it.pci,
            "peer_pci": self.cards("peer")[0].pci,
            "mate_host": mate.name,
            "mate_address": mate.address,
        }
        return own | self.drawn

    @property
    def _mate(self) -> Host:
        """The next node of the job: with whom the part's node talks most."""
        if len(self.job_hosts) < 2:
            return self.host
        place = self.job_hosts.index(self.host)
        return self.job_hosts[(place + 1) % len(self.job_hosts)]

    def hosts_of(self, cards: Iterable[Card]) -> list[Host]:
        """The hosts of some cards, each once."""
        return list({card.host: self.plant.named[card.host] for card in cards}.values())


def draw(
    number: int,
    scenario: Scenario,
    variant: Variant | None,
    begin: datetime,
    plant: Plant,
    host: Host,
    seed: int,
) -> Cast:
    """Draw everything that a scenario leaves open, from one seed."""
    dice = random.Random(seed)
    near = [one for one in plant.leaves[host.leaf] if one is not host]
    wanted = scenario.job.nodes if scenario.job else 0
    hosts = [host, *dice.sample(near, min(wanted - 1, len(near)))] if wanted else []
    dice.shuffle(hosts)
    return Cast(
        number=number,
        scenario=scenario,
        variant=variant,
        begin=begin,
        plant=plant,
        host=host,
        it=dice.choice(host.cards),
        job_hosts=tuple(hosts),
        job=f"job-{scenario.group[0]}{number:05d}",
        seed=seed,
        drawn=_numbers(dice),
    )


def _numbers(dice: random.Random) -> dict[str, int | str]:
    """The numbers that stand in lines: addresses, channels, units, counters."""
    link = dice.randrange(18)
    return {
        "pid": dice.randrange(30_000, 4_000_000),
        "row": f"{dice.randrange(1 << 32, 1 << 40) & ~31:#x}",
        "virtual": f"0x{dice.randrange(0x7E00, 0x7FFF):x}_{dice.getrandbits(20):05x}000",
        "link": link,
        "link2": f"{link:02d}",
        # Xid 149 before driver 575: low bits the unit, [17:13] the link, [25:20] why it went down.
        "netir_signal": f"0x{4 << 20 | 0x40000 | link << 13 | 0x5C6:08x}",
        "netir_peer": f"0x{33 << 20 | 0x40000 | link << 13 | 0x5C6:08x}",
        # Xid 145 of the unit RLW_REMAP, fatal.
        "rlw": f"0x{0x0408_0000 | link << 13 | 0x482:08x}",
        "gi": dice.randrange(1, 7),
        "seq": dice.randrange(2_000, 90_000),
        "elements": 1 << dice.randrange(18, 27),
        "comm": f"{dice.getrandbits(64):#018x}",
        "channel": f"{dice.randrange(8, 64):08x}",
        "gpc": dice.randrange(8),
        "tpc": dice.randrange(9),
        "sm": dice.randrange(2),
        "sxid_port": dice.randrange(64),
        "dimm": dice.randrange(2),
    }
