"""Nodes over slurmrestd (24.05 and later: before, it cannot drain), where no scontrol is at hand.

Jobs stay with squeue and scontrol: slurmrestd can cancel a job and cannot requeue one.
"""

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from schedulers.slurm import marks
from schedulers.slurm.config import SlurmConfig
from schedulers.slurm.nodes import Node
from schedulers.slurm.tools import ToolsError

__all__ = ["RestNodes"]

_LARGEST = 512 * 1024 * 1024
_SERVER_ERROR, _FORBIDDEN = 500, (401, 403)
#: A node that slurmctld does not know: ESLURM_INVALID_NODE_NAME, and what slurmrestd 24.11 says.
_NO_SUCH_NODE = (2018, 0)


class RestNodes:
    """Reads nodes and changes their drain, as `schedulers.slurm.nodes.Nodes` does by scontrol."""

    def __init__(self, config: SlurmConfig) -> None:
        self._config = config

    def all(self) -> dict[str, Node]:
        """Every node by its name; raises ToolsError."""
        return self._nodes("/nodes/")

    def some(self, names: Iterable[str]) -> dict[str, Node]:
        """These nodes; a name that Slurm does not know is left out. Raises ToolsError."""
        wanted = sorted(set(names))
        if len(wanted) == 1:
            return self._nodes(f"/node/{urllib.parse.quote(wanted[0], safe='')}")
        found = self.all()
        return {name: found[name] for name in wanted if name in found}

    def drain(self, node: Node, held: Iterable[marks.Mark]) -> Node:
        """Drain a node for these marks; returns it as it should be now. Raises ToolsError."""
        reason = marks.written(held)
        self._update(node, {"state": ["DRAIN"], "reason": reason})
        flags = (*(flag for flag in node.flags if flag != "DRAIN"), "DRAIN")
        return replace(node, flags=flags, reason=reason)

    def undrain(self, node: Node) -> Node:
        """End a drain and nothing else: a node that is down stays down. Raises ToolsError."""
        self._update(node, {"state": ["UNDRAIN"]})
        flags = tuple(flag for flag in node.flags if flag != "DRAIN")
        return replace(node, flags=flags, reason="")

    def _update(self, node: Node, change: dict[str, Any]) -> None:
        self._call(f"/node/{urllib.parse.quote(node.name, safe='')}", change)

    def _nodes(self, path: str) -> dict[str, Node]:
        try:
            found = (_node(one) for one in self._call(path).get("nodes", ()))
            return {node.name: node for node in found}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ToolsError(
                f"slurmrestd: its answer is not understood: {error!r}", retry=False
            ) from error

    def _call(self, path: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
        """One question, or one change; raises ToolsError with Slurm's own words."""
        url = self._config.rest_url.rstrip("/") + path
        body = None if change is None else json.dumps(change).encode()
        try:
            request = urllib.request.Request(url, body, self._headers())  # noqa: S310 (checked to be http)
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=self._config.timeout_s, context=self._tls()
            ) as answer:
                content = answer.read(_LARGEST)
        except urllib.error.HTTPError as error:
            content = error.read(_LARGEST)
            if error.code in _FORBIDDEN or not content.lstrip().startswith(b"{"):
                retry = error.code >= _SERVER_ERROR
                raise ToolsError(f"slurmrestd: {error.code} {error.reason}", retry=retry) from error
        except (OSError, ValueError) as error:
            raise ToolsError(f"slurmrestd at {url} does not answer: {error}", retry=True) from error
        try:
            said: dict[str, Any] = json.loads(content)
            errors = said.get("errors") or ()
        except (ValueError, AttributeError) as error:
            raise ToolsError("slurmrestd: its answer is no JSON object", retry=True) from error
        if errors:
            if change is None and all(one.get("error_number") in _NO_SUCH_NODE for one in errors):
                return {}
            words = "; ".join(str(one.get("error") or one.get("description")) for one in errors)
            away = "contact slurm controller" in words.lower() or "node state" in words.lower()
            raise ToolsError(f"slurmrestd: {words}", retry=away)
        return said

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        file = self._config.rest_token_file
        if file is not None:
            # Read each time: tokens are short-lived, and whoever renews them writes the file.
            try:
                headers["X-SLURM-USER-TOKEN"] = file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ToolsError(
                    f"the token file {file} cannot be read: {error}", retry=True
                ) from error
        if self._config.rest_user:
            headers["X-SLURM-USER-NAME"] = self._config.rest_user
        return headers

    def _tls(self) -> ssl.SSLContext | None:
        if not self._config.rest_url.startswith("https:"):
            return None
        ca = self._config.rest_cafile
        return ssl.create_default_context(cafile=None if ca is None else str(ca))


def _node(one: dict[str, Any]) -> Node:
    flags = tuple(str(flag) for flag in one["state"]) or ("UNKNOWN",)
    return Node(
        name=str(one["name"]),
        flags=flags,
        features=frozenset(map(str, one.get("active_features") or ())),
        reason=str(one.get("reason") or "").strip(),
        by=str(one.get("reason_set_by_user") or "") if one.get("reason") else "",
        since=_time(one.get("reason_changed_at")) if one.get("reason") else None,
        booted_at=_time(one.get("boot_time")),
    )


def _time(value: Any) -> datetime | None:  # noqa: ANN401 (JSON)
    """A time as {set, infinite, number} (24.05 and later) or as seconds; None for none."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int) and value > 0 else None
