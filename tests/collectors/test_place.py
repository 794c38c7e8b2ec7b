"""Where a node stands, from a mapping, labels or its name."""

import logging
import os
from pathlib import Path

import pytest

from collectors.config import AgentConfig
from collectors.node.place import Place, PlaceFinder, from_labels, from_mapping, from_pattern
from evidence.transport import Kafka
from vitals.address import listen_address

MAPPING = """\
# host      rack  leaf     pool
dgx-a01     ra    leaf-7   train
dgx-a02.hpc.example  ra  -  infer  nvl-3
dgx-b01,rb,leaf-8
dgx-b02     # no rack yet
"""
LABELS = r"""
topology.kubernetes.io/rack="rk\"9"
topology.kubernetes.io/zone="z1"
network.topology.nvidia.com/leaf="sw-14"
network.topology.nvidia.com/accelerator="nvl-44"
cloud.google.com/gke-nodepool="ignored"
karpenter.sh/nodepool="h100"
broken line
pool=unquoted
"""


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("dgx-a01", Place("ra", "leaf-7", "train")),
        ("DGX-A01.hpc.example", Place("ra", "leaf-7", "train")),
        ("dgx-a02", Place("ra", None, "infer", "nvl-3")),
        ("dgx-a02.other.example", Place()),
        ("dgx-b01", Place("rb", "leaf-8")),
        ("dgx-b02", Place()),
        ("dgx-a0", Place()),
    ],
)
def test_a_mapping_file_has_a_line_a_host(host: str, place: Place) -> None:
    assert from_mapping(MAPPING.splitlines(), host) == place


def test_the_full_name_wins_over_the_short_one() -> None:
    lines = ["n1 near", "n1.east.example far"]
    assert from_mapping(lines, "n1.east.example").rack == "far"
    assert from_mapping(lines, "n1").rack == "near"


def test_labels_name_a_place_by_the_end_of_their_key() -> None:
    assert from_labels(LABELS.splitlines()) == Place('rk"9', "sw-14", "h100", "nvl-44")
    assert from_labels(['cloud.google.com/accelerator="h100-80gb"']) == Place()


def test_a_host_name_tells_its_rack_by_a_pattern() -> None:
    pattern = r"hgx-(?P<pool>[a-z]+)-r(?P<rack>\d+)-n\d+"
    assert from_pattern(pattern, "hgx-train-r07-n3") == Place(rack="07", pool="train")
    assert from_pattern(pattern, "hgx-train-r07-n3.example") == Place()


def test_what_is_closest_to_the_node_wins(tmp_path: Path) -> None:
    rack_file, label_file = tmp_path / "racks", tmp_path / "labels"
    rack_file.write_text("r1-n1 map-rack map-leaf map-pool map-nvl\n")
    label_file.write_text('a.example/rack="label-rack"\na.example/leaf="label-leaf"\n')
    finder = PlaceFinder(
        "r1-n1",
        Place(rack="given"),
        rack_file=rack_file,
        label_file=label_file,
        rack_pattern=r"(?P<rack>r\d+)-n\d+",
    )
    assert finder() == Place("given", "label-leaf", "map-pool", "map-nvl")
    named = PlaceFinder("r1-n1", Place(), rack_pattern=r"(?P<rack>r\d+)-n\d+")
    assert named() == Place("r1")


def test_a_changed_file_is_read_anew_and_a_missing_one_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rack_file = tmp_path / "racks"
    finder = PlaceFinder("n1", Place(), rack_file=rack_file)
    with caplog.at_level(logging.WARNING):
        assert [finder(), finder()] == [Place(), Place()]
    assert caplog.messages == [
        f"{rack_file} tells nothing of this node's place: No such file or directory"
    ]
    rack_file.write_text("n1 r1\n")
    assert finder() == Place("r1")
    rack_file.write_bytes(b"n1 r2\xff\n")
    os.utime(rack_file, ns=(1, 1))
    assert finder() == Place("r2\ufffd")
    rack_file.unlink()
    assert finder() == Place()


@pytest.mark.parametrize("wrong", ["r(", "rack-\\d+", "(?P<row>r\\d+)-.*"])
def test_a_pattern_that_can_name_no_place_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="rack_pattern"):
        AgentConfig(kafka=Kafka(), rack_pattern=wrong)


def test_an_address_to_listen_on_has_a_host_and_a_port() -> None:
    assert listen_address("127.0.0.1:9455") == ("127.0.0.1", 9455)
    assert listen_address("[::1]:0") == ("::1", 0)
    for wrong in ("9455", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            AgentConfig(kafka=Kafka(), metrics_listen=wrong)
