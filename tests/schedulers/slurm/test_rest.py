"""Nodes over slurmrestd, against a stand-in that answers in the shapes of slurmrestd 24.11."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from schedulers.slurm import SlurmConfig
from schedulers.slurm.marks import Mark
from schedulers.slurm.nodes import Node
from schedulers.slurm.rest import RestNodes
from schedulers.slurm.tools import ToolsError

TOKEN = "eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmVk"
SINCE = datetime(2026, 11, 3, 4, 5, 6, tzinfo=UTC)


def number(value: int) -> dict[str, Any]:
    return {"set": value > 0, "infinite": False, "number": value}


def shown(name: str, *state: str, reason: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "state": list(state),
        "active_features": ["h200", "r3"],
        "reason": reason,
        "reason_set_by_user": "ops",
        "reason_changed_at": number(int(SINCE.timestamp()) if reason else 0),
        "boot_time": number(1_790_000_000),
        "next_state_after_reboot": ["INVALID"],
    }


class StandIn(ThreadingHTTPServer):
    """Keeps two nodes; ``broken`` is sent instead of an answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.nodes = {"n1": shown("n1", "IDLE"), "n2": shown("n2", "MIXED", "DRAIN", reason="fan")}
        self.broken: tuple[int, bytes] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        name = self.path.rpartition("/node/")[2] if "/node/" in self.path else None
        if name is None:
            self._say({"nodes": list(self.server.nodes.values()), "errors": []})
        elif name in self.server.nodes:
            self._say({"nodes": [self.server.nodes[name]], "errors": []})
        else:
            self._say({"nodes": [], "errors": [{"error_number": 0, "error": "No error"}]})

    def do_POST(self) -> None:
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        node = self.server.nodes.get(self.path.rpartition("/")[2])
        if node is None:
            error = {"error_number": 2018, "error": "Invalid node name specified"}
            self._say({"errors": [error]}, 500)
            return
        flags = [flag for flag in node["state"] if flag != "DRAIN"]
        node["state"] = [*flags, "DRAIN"] if change["state"] == ["DRAIN"] else flags
        node["reason"] = change.get("reason", node["reason"])  # an old reason stays (24.11)
        self._say({"errors": []})

    def _say(self, answer: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(answer).encode()
        if self.headers.get("X-SLURM-USER-TOKEN") != TOKEN:
            code, body = 401, b"Authentication failure"
        if self.server.broken is not None:
            code, body = self.server.broken
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def nodes(stand_in: StandIn, tmp_path: Path) -> RestNodes:
    (tmp_path / "token").write_text(TOKEN + "\n")
    url = f"http://127.0.0.1:{stand_in.server_port}/slurm/v0.0.42/"
    return RestNodes(SlurmConfig(rest_url=url, rest_token_file=tmp_path / "token"))


def test_nodes_are_read_with_whose_their_drain_is(nodes: RestNodes) -> None:
    found = nodes.all()
    booted = datetime.fromtimestamp(1_790_000_000, UTC)
    features = frozenset({"h200", "r3"})
    assert found["n1"] == Node("n1", ("IDLE",), features, booted_at=booted)
    assert found["n2"] == Node("n2", ("MIXED", "DRAIN"), features, "fan", "ops", SINCE, booted)
    assert found["n2"].foreign
    assert nodes.some(["n2"]) == {"n2": found["n2"]}
    assert nodes.some(["n1", "n9"]) == {"n1": found["n1"]}
    assert nodes.some(["n9"]) == {}


def test_a_drain_is_set_and_ended_and_an_old_reason_drains_nothing(nodes: RestNodes) -> None:
    mark = Mark("c1", "gpu:n1/0000:3b:00", "gpu-lost")
    after = nodes.drain(nodes.all()["n1"], [mark])
    assert nodes.all()["n1"].marks == after.marks == (mark,)
    nodes.undrain(after)
    left = nodes.all()["n1"]
    assert left.reason.startswith("ringfence:")
    assert (left.drained, left.marks, left.foreign) == (False, (), False)


def test_a_node_that_is_not_there_is_slurms_own_sentence(nodes: RestNodes) -> None:
    with pytest.raises(ToolsError, match="slurmrestd: Invalid node name specified") as failed:
        nodes.undrain(Node("n9", ("IDLE",)))
    assert not failed.value.retry


@pytest.mark.parametrize(
    ("answer", "said", "retry"),
    [
        ((200, b"<html>"), "slurmrestd: its answer is no JSON object", True),
        ((200, b"[]"), "slurmrestd: its answer is no JSON object", True),
        ((200, b'{"nodes": [{}]}'), "is not understood", False),
        ((200, b'{"nodes": 7}'), "is not understood", False),
        ((503, b"busy"), "slurmrestd: 503", True),
        (
            (500, b'{"errors": [{"error": "Unable to contact slurm controller"}]}'),
            "Unable to contact",
            True,
        ),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(
    nodes: RestNodes, stand_in: StandIn, answer: tuple[int, bytes], said: str, retry: bool
) -> None:
    stand_in.broken = answer
    with pytest.raises(ToolsError, match=said) as failed:
        nodes.all()
    assert failed.value.retry is retry


def test_a_wrong_token_and_a_missing_one_are_told(nodes: RestNodes, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stale")
    with pytest.raises(ToolsError, match="slurmrestd: 401") as failed:
        nodes.all()
    assert not failed.value.retry
    (tmp_path / "token").unlink()
    with pytest.raises(ToolsError, match="token cannot be read"):
        nodes.all()


def test_a_server_that_is_away_is_asked_again() -> None:
    with pytest.raises(ToolsError, match="does not answer") as failed:
        RestNodes(SlurmConfig(rest_url="http://127.0.0.1:1/slurm/v0.0.42")).all()
    assert failed.value.retry


def test_an_address_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="is not http://HOST:PORT"):
        SlurmConfig(rest_url="file:///etc/passwd")
