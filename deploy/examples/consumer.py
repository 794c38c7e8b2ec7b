# ruff: noqa: BLE001, INP001, PLR0911, T201 (an example, not a package; it prints)
"""A whole consumer of isolation commands: python consumer.py HOST:PORT KEY.pem STATE.json."""

import base64
import json
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from kafka import KafkaConsumer, KafkaProducer

BROKER, KEY, STATE = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
PREFIX = sys.argv[4] if sys.argv[4:] else "ringfence."
COMMANDS, ACKS = f"{PREFIX}isolation.commands", f"{PREFIX}isolation.acks"
SIGNED_BY = load_pem_public_key(KEY.read_bytes())
MOST = 20  # isolations an hour, whatever is asked
memory = json.loads(STATE.read_text()) if STATE.exists() else {"done": {}, "newest": {}, "out": {}}


def remember() -> None:
    """Keep the memory, whole or not at all."""
    STATE.with_suffix(".new").write_text(json.dumps(memory))
    STATE.with_suffix(".new").replace(STATE)


def act(one: dict) -> None:
    """Tell your scheduler; done twice it must leave what done once leaves."""
    print(one["action"], one["domain_id"], one["level"], flush=True)


def answer(one: dict, signature: bytes, value: bytes) -> tuple[str, str]:
    """Status and detail of the ack, after acting where that is called for."""
    if one["schema"] != "command/1":
        raise ValueError(one["schema"])
    try:
        signed = b"\x00".join((b"ringfence-signature-v1", COMMANDS.encode(), value))
        SIGNED_BY.verify(base64.b64decode(signature), signed)
    except (InvalidSignature, ValueError):
        return "refused", "not signed with a key that is trusted here"
    domain, act_by, now = one["domain_id"], one.get("act_by"), datetime.now(UTC)
    asked = [one["action"], domain, one["level"], one["generation"]]
    if one["id"] in memory["done"]:
        same = memory["done"][one["id"]] == asked
        return (
            ("done", "told the scheduler") if same else ("refused", "replayed with other content")
        )
    if one["generation"] < memory["newest"].get(domain, 0):
        return "refused", "out of generation"
    memory["newest"][domain] = one["generation"]
    if one.get("dry_run") or one.get("held"):
        return "skipped", one.get("held") or "dry run"
    if one["action"] == "isolate":
        if act_by and now > datetime.fromisoformat(act_by):
            return "expired", "act_by had passed"
        out = {name: at for name, at in memory["out"].items() if at > now.timestamp() - 3600}
        if domain not in out and len(out) >= MOST:
            return "refused", f"this consumer's own limit: {MOST} isolations an hour"
        memory["out"] = out | {domain: now.timestamp()}
    remember()  # before the act: what is begun counts
    try:
        act(one)
    except Exception as error:
        return "failed", str(error)
    memory["done"][one["id"]] = asked
    remember()
    return "done", "told the scheduler"


consumer = KafkaConsumer(
    COMMANDS, bootstrap_servers=BROKER, group_id=f"{COMMANDS}.example",
    enable_auto_commit=False, auto_offset_reset="earliest",
)  # fmt: skip
producer = KafkaProducer(bootstrap_servers=BROKER, acks="all")
for message in consumer:
    try:
        one = json.loads(message.value)
        signatures = [
            text or b"" for name, text in message.headers if name == "ringfence-signature"
        ]
        signature = signatures[0] if len(signatures) == 1 else b""
        status, detail = answer(one, signature, message.value)
        ack = {"schema": "ack/1", "command": one["id"], "domain_id": one["domain_id"]}
        ack |= {"scheduler": "example", "status": status, "detail": detail}
        ack["id"] = sha256(f"example {one['id']} {status}".encode()).hexdigest()[:24]
        ack["at"] = datetime.now(UTC).isoformat()
        producer.send(ACKS, json.dumps(ack).encode(), key=b"cluster").get(30)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"no command at offset {message.offset}: {error!r}", file=sys.stderr)
    consumer.commit()  # only now: what was not acked is read again
