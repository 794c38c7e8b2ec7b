"""A state folder that is not ours, or is none: the agent works, without a memory."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from powerless import nobody

from collectors.agent import AgentConfig
from collectors.registry import node_of, sources_of
from collectors.shipping.backlog import Parcel
from collectors.shipping.spool_keeper import SpoolKeeper
from evidence.transport import Kafka


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def closed(folder: Path) -> Path:
    state = folder / "state"
    (state / "nccl").mkdir(parents=True)
    state.chmod(0)
    return state


def nothing(folder: Path) -> Path:
    (folder / "state").write_text("this is no folder")
    return folder / "state"


def circle(folder: Path) -> Path:
    (folder / "state").symlink_to("state")
    return folder / "state"


@pytest.mark.parametrize("made", [closed, nothing, circle])
def test_the_collectors_read_and_only_their_places_are_not_kept(made: object, folder: Path) -> None:
    assert callable(made)
    state = made(folder)
    log = folder / "kern.log"
    log.write_text(
        "Mar  4 05:06:07 n8 kernel: [ 12.5] NVRM: Xid (PCI:0000:41:00): 79, "
        "GPU has fallen off the bus.\n"
    )
    (folder / "rank0.log").write_text("nothing\n")
    config = AgentConfig(
        kafka=Kafka(bootstrap="127.0.0.1:1"),
        host="n8",
        boot_id="b-1",
        kernel_source="none",
        kernel_files=(log,),
        nccl_paths=(f"{folder}/rank{{rank}}.log",),
        nccl_flight_recorder=(f"{folder}/dump*",),
        gpu_source="none",
        fabric_sysfs=False,
        state_dir=state,
    )
    with nobody():
        sources = sources_of(node_of(config))
        found = {one.name: len(one.take(0.0)) for one in sources}
        errors = {one.name: one.errors for one in sources}
        keeper = SpoolKeeper(state / "spool.sqlite", 1 << 20, lambda _lost: None)
        kept = keeper.write([Parcel(1, "kernel", b"k", b"{}", telemetry=False)], ())
        for one in sources:
            one.finish(0.0)
    assert found["kernel-files"] == 1
    assert set(errors.values()) == {0}
    assert not kept
