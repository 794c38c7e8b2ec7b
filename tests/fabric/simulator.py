"""A simulated fabric: ibsim with the real opensm on a fat tree that is generated here.

Programs that use libibumad speak to it when they are started with `Simulator.environment` and in
`Simulator.folder`; each of them is a client, and ibsim takes ten. Also used by bench/fabric.py.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

__all__ = ["Simulator", "Tree", "missing"]

PRELOAD = Path("/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so")
PROGRAMS = ("ibsim", "opensm", "perfquery", "iblinkinfo", "ibportstate", "ibqueryerrors")


def missing() -> str | None:
    """What is not installed here, as a sentence; None when nothing is missing."""
    gone = [one for one in PROGRAMS if shutil.which(one, path=_path()) is None]
    gone += [] if PRELOAD.exists() else [str(PRELOAD)]
    if not gone:
        return None
    return f"{gone[0]} is not installed (Debian: ibsim-utils infiniband-diags opensm)"


#: What is logged is to be seen at once; the manager is to look at the fabric often.
_MANAGER = "force_log_flush TRUE\nsweep_interval 1\n"


class Tree:
    """Two levels of switches with ``hosts`` machines under each leaf, ``cards`` adapters in each.

    Leaf l has its adapters on ports 1, 2, ... and its spines behind them; spine s has leaf l on
    port l + 1. All counts from 0 but ports, as they are.
    """

    def __init__(self, *, spines: int, leaves: int, hosts: int, cards: int, ports: int) -> None:
        self.spines, self.leaves, self.hosts, self.cards = spines, leaves, hosts, cards
        self.ports = ports

    @staticmethod
    def leaf(number: int) -> int:
        return 0x506B4B0300A10000 + number * 0x40

    @staticmethod
    def spine(number: int) -> int:
        return 0x506B4B0300C20000 + number * 0x40

    def card(self, leaf: int, host: int, card: int) -> int:
        return 0x98039B0300500000 + self._nth(leaf, host, card) * 4

    def name(self, leaf: int, host: int, card: int) -> str:
        return f"hgx{leaf * self.hosts + host + 1:03d} mlx5_{card}"

    def card_port(self, host: int, card: int) -> int:
        """The leaf's port of an adapter."""
        return host * self.cards + card + 1

    def up_port(self, spine: int) -> int:
        """A leaf's port towards a spine."""
        return self.hosts * self.cards + spine + 1

    def netlist(self) -> str:
        """The fabric in the format of ibnetdiscover, which ibsim reads."""
        lines: list[str] = []
        for leaf in range(self.leaves):
            for host in range(self.hosts):
                for card in range(self.cards):
                    lines += self._card_lines(leaf, host, card)
        for leaf in range(self.leaves):
            lines += self._switch_lines(self.leaf(leaf), f"MF0;leaf-{leaf + 1}:MQM9700/U1")
            lines += [
                self._wire(self.card_port(host, card), "H", self.card(leaf, host, card), 1)
                for host in range(self.hosts)
                for card in range(self.cards)
            ]
            lines += [
                self._wire(self.up_port(spine), "S", self.spine(spine), leaf + 1)
                for spine in range(self.spines)
            ]
        for spine in range(self.spines):
            lines += self._switch_lines(self.spine(spine), f"MF0;spine-{spine + 1}:MQM9700/U1")
            lines += [
                self._wire(leaf + 1, "S", self.leaf(leaf), self.up_port(spine))
                for leaf in range(self.leaves)
            ]
        return "\n".join(lines) + "\n"

    def _nth(self, leaf: int, host: int, card: int) -> int:
        return (leaf * self.hosts + host) * self.cards + card

    def _card_lines(self, leaf: int, host: int, card: int) -> list[str]:
        guid = self.card(leaf, host, card)
        return [
            "",
            "vendid=0x2c9",
            "devid=0x1021",
            f"sysimgguid=0x{guid:x}",
            f"caguid=0x{guid:x}",
            f'Ca\t1 "H-{guid:016x}"\t\t# "{self.name(leaf, host, card)}"',
            self._wire(1, "S", self.leaf(leaf), self.card_port(host, card), f"({guid + 1:x}) "),
        ]

    def _switch_lines(self, guid: int, name: str) -> list[str]:
        return [
            "",
            "vendid=0x2c9",
            "devid=0xd2f2",
            f"sysimgguid=0x{guid:x}",
            f"switchguid=0x{guid:x}({guid:x})",
            f'Switch\t{self.ports} "S-{guid:016x}"\t\t# "{name}" enhanced port 0 lid 0 lmc 0',
        ]

    @staticmethod
    def _wire(port: int, letter: str, guid: int, other: int, own: str = "\t") -> str:
        return f'[{port}]{own}"{letter}-{guid:016x}"[{other}]\t\t# "" lid 0 4xHDR'


class Simulator:
    """A running fabric, gone at the end of the ``with``; ``folder`` is for it and its clients."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        self.tree = tree
        self.folder = folder
        self.socket = f"rf{uuid.uuid4().hex[:10]}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._console: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """For a client: it sits in the first adapter of the first leaf."""
        plain = {name: v for name, v in os.environ.items() if "RINGFENCE" not in name}
        return plain | {
            "PATH": _path(),
            "LD_PRELOAD": str(PRELOAD),
            "IBSIM_SOCKNAME": self.socket,
            "SIM_HOST": f"H-{self.tree.card(0, 0, 0):016x}",
        }

    @property
    def pid(self) -> int:
        """Of ibsim, which is the fabric."""
        return self._processes[0].pid

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        netlist = self.folder / "netlist"
        netlist.write_text(self.tree.netlist())
        console = self.folder / "console"
        os.mkfifo(console)
        # Open for reading too, so that ibsim never meets the end of its console.
        self._console = os.open(console, os.O_RDWR)
        sim = {"PATH": _path(), "IBSIM_SOCKNAME": self.socket}
        try:
            self._start(["ibsim", "-s", "-f", "ibsim.out", str(netlist)], sim, console)
            self._until(lambda: self.socket in Path("/proc/net/unix").read_text(), "ibsim")
            (self.folder / "osm.conf").write_text(_MANAGER)
            manager = self.environment | {
                "OSM_TMP_DIR": str(self.folder),
                "OSM_CACHE_DIR": str(self.folder),
            }
            log = self.folder / "osm.log"
            self._start(["opensm", "-F", "osm.conf", "-e", "-f", str(log)], manager)
            self._until(lambda: log.exists() and "SUBNET UP" in log.read_text(), "opensm")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()
        if self._console is not None:
            os.close(self._console)
            self._console = None

    def say(self, command: str) -> None:
        """Give ibsim's console a command, and wait until it was carried out."""
        assert self._console is not None
        out = self.folder / "ibsim.out"
        before = _size(out)
        os.write(self._console, f"{command}\n".encode())
        self._until(lambda: _size(out) > before, f"an answer to {command!r}")

    def set(self, guid: int, port: int, counter: str, value: int, letter: str = "S") -> None:
        """Set a counter, named as ibsim does: ``PortCounters.SymbolErrorCounter``."""
        self.say(f'PerformanceSet "{letter}-{guid:016x}"[{port}] {counter}={value}')

    def unlink(self, guid: int, port: int) -> None:
        self.say(f'Unlink "S-{guid:016x}"[{port}]')

    def relink(self, guid: int, port: int) -> None:
        self.say(f'ReLink "S-{guid:016x}"[{port}]')

    @contextlib.contextmanager
    def manager_held(self) -> Iterator[None]:
        """Hold the subnet manager still: it would set a link's speed right as soon as it hears."""
        manager = self._processes[1]
        manager.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            manager.send_signal(signal.SIGCONT)

    def run(self, *command: str, within_s: float = 20) -> str:
        """What a tool prints; its exit code says other things than failure and is left alone."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
        return done.stdout

    def lid(self, guid: int) -> int:
        """A node's LID, as the real tool finds it."""
        found = re.search(rf"0x{guid:016x} .*?\s(\d+)\s+\d+\[", self.run("iblinkinfo", "--line"))
        assert found is not None, hex(guid)
        return int(found[1])

    def _start(
        self, command: list[str], environment: dict[str, str], console: Path | None = None
    ) -> None:
        with contextlib.ExitStack() as files:
            output = files.enter_context((self.folder / f"{command[0]}.log").open("wb"))
            given = files.enter_context(console.open("rb")) if console else subprocess.DEVNULL
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=environment,
                    stdin=given,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def _until(self, done: object, what: str, within_s: float = 60) -> None:
        assert callable(done)
        ends = time.monotonic() + within_s
        while not done():
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"a part of the simulated fabric ended: {process.args!r}")
            if time.monotonic() > ends:
                raise TimeoutError(f"no sign of {what} in {within_s:.0f} s")
            time.sleep(0.01)


def _path() -> str:
    """The tools live in sbin, which is not on everybody's path."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
