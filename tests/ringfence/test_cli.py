"""Every subcommand's promise: 0 done, 1 what was asked about is bad, 2 and one sentence."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from ringfence.cli import main
from ringfence.embedded import free_port
from warehouse.files import prepare


def sentence(result: Result) -> str:
    """The one sentence of a call that failed; click's two lines of usage may stand before it."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("Usage: ", "Try '"))]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0].removeprefix("Error: ")


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


# What is asked for, and what the sentence says. {folder} is the test's own.
WRONG = [
    ("nothing-of-the-kind", "No such command"),
    ("--log-level shouting sql select", "is not one of 'debug'"),
    ("--config {folder}/none.toml isolate node:n1", "none.toml: .*No such file"),
    ("--config {folder} isolate node:n1", "Is a directory"),
    ("--config {folder}/typo.toml isolate node:n1", r"\[kafka\] has no setting 'bootstrp'"),
    ("--config {folder}/typo.toml demo --seed x", "'x' is not a valid integer"),
    ("--config {folder}/number.toml isolate node:n1", r"\[kafka\] Expected `str`, got `int`"),
    ("demo --keep {folder}/file", "file cannot be used: File exists"),
    ("demo --within nan", "'nan' is not a number"),
    ("demo --within 0", "not in the range"),
    ("up --bootstrap 127.0.0.1:kafka", r"\[kafka\] bootstrap: '127.0.0.1:kafka' is not HOST:PORT"),
    ("--data {folder}/file up", "file cannot be used: File exists"),
    ("--config {folder}/policy.toml up", "no-such-policy.toml"),
    ('up --exec "drain-it \'now"', "is no command line: No closing quotation"),
    ("agent --once --gpu radeon", "'radeon'"),
    ("agent --once --gpu recording", "gpu_recording names no file"),
    (
        "--config {folder}/agent.toml agent --once",
        r"\[agent\] has no setting 'kernel_file'; it has",
    ),
    ("--config {folder}/worker.toml worker", r"\[worker\] Expected `float`, got `str`"),
    ("sink --bootstrap 127.0.0.1:70000", "'127.0.0.1:70000' is not HOST:PORT"),
    ("scheduler exec", "Missing argument 'PROGRAM...'"),
    ("scheduler exec --timeout nan /bin/true", "'nan' is not a number"),
    ("scheduler exec --bootstrap , /bin/true", "'' is not HOST:PORT"),
    ("""scheduler exec --observe "'" /bin/true""", '--observe: "\'" is no command line'),
    ("scheduler slurm --bootstrap ,", "'' is not HOST:PORT"),
    ("scheduler kubernetes --bootstrap ,", "'' is not HOST:PORT"),
    ("scheduler torchrun", "Missing argument 'COMMAND...'"),
    ("keys new ../elsewhere", "'../elsewhere' is no name of a key"),
    ("parse cables", "'cables' is not one of 'kernel', 'nccl', 'gpu', 'fabric'"),
    ("parse fabric {folder}/file", "file: holds nothing that a fabric tool prints"),
    ("fabric-agent --once --interval 0", "interval_s must be more than 0"),
    ("parse kernel {folder}/none.log", "none.log.*No such file"),
    ("parse kernel {folder}", "Is a directory"),
    ("parse nccl {folder}/cut.gz", "cut.gz: broke off"),
    ("triage {folder}/none", "none: no such file or folder"),
    ("triage {folder}/empty", "empty: nothing readable"),
    ("triage {folder}/nothing.bin", "nothing.bin: nothing readable"),
    ("triage {folder}/cut.gz", "cut.gz: nothing readable"),
    ("triage {folder}/file --policy {folder}/none.toml", "none.toml: cannot be read"),
    ("triage {folder}/file --policy {folder}/typo.toml", "typo.toml"),
    ("triage {folder}/file --thresholds {folder}/file", "is not TOML"),
    ("sql 'select 1'", "there is no warehouse at .*/data/warehouse"),
    ("why 4f1e", "there is no warehouse at"),
    ("timeline c01 --around 2026-03-03", "there is no warehouse at"),
    ("announce party --host n1", "'party' is nothing that can be announced; known: allocation"),
    ("announce reboot", "Missing option '--host'"),
    ("announce gpu-reset --host n1 --gpu 4f", "'4f'"),
    ("announce reboot --host n1 --for inf", "not in the range"),
    ("announce reboot --host n1 --for -3", "not in the range"),
    ("isolate card:n1", "'card:n1' is no domain: gpu:HOST/0000:3b:00"),
    ("isolate node:n1 --level hard", "'hard' is not one of 'cordon', 'drain', 'evict'"),
    ("release gpu:n1/zz", "'zz'"),
    ("release node:n1 --direct exec", "PROGRAM is needed for --direct exec"),
    ("release node:n1 --name slurm", "PROGRAM and --name belong to --direct"),
    ("context maintenance n1 --for soon", "'soon' is no length of time like 90s, 30m, 2h or 1d"),
    ("context reboot n1 --for 900d", "'900d' is no length of time"),
    ("context driver-upgrade", "Missing argument 'HOST'"),
    ("context gpu-reset n1 --gpu 4f", "'4f'"),
    ("context mig-change n1 --for 0m", "'0m' is no length of time"),
    ("context end n1 party", "'party' is not one of"),
    ("context list --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("isolation list --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("--config {folder}/policy.toml isolation list", "no-such-policy.toml"),
    ("isolation show card:n1", "'card:n1' is no domain"),
    ("isolation hold node:n1 --level hard", "'hard' is not one of"),
    ("isolation resume cards", "'cards' is no domain"),
    ("isolation isolate card:n1", "'card:n1' is no domain"),
    ("isolation release gpu:n1/zz", "'zz'"),
    ("--data {folder} replay", "there is no warehouse at"),
    ("replay --since yesterday", "'yesterday' is no time like"),
    ("preflight {folder}/nothing.bin", "nothing.bin: is no launch script or config"),
    ("spares --nodes 16 --failures 2", "--failures and --node-days belong together"),
    ("compact --kind cables", "'cables'"),
    ("retain --root {folder}/none", "there is no warehouse at"),
    ("keys new ../x", "x"),
    ("scheduler slurm --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("scheduler kubernetes --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("scheduler torchrun", "Missing argument 'COMMAND...'"),
    ("ecc-growth", "there is no warehouse at"),
    ("import {folder}/none", "none"),
    ("drill no-such-drill", "no-such-drill"),
    ("drills", "there is no warehouse at"),
    ("deadletters list --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("deadletters show --bootstrap kafka 4f", "'kafka' is not HOST:PORT"),
    ("deadletters resend --bootstrap kafka", "kafka|filter|ids"),
    ("topics check --bootstrap kafka", "'kafka' is not HOST:PORT"),
    ("topics create --bootstrap kafka", "'kafka' is not HOST:PORT"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the wrong calls name."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("[no TOML, no log, and no folder\n")
    (tmp_path / "nothing.bin").write_bytes(bytes(range(256)) * 64)
    line = b"NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen off the bus.\n"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(line * 90)[:40])
    for name, text in (
        ("typo", '[kafka]\nbootstrp = "127.0.0.1:9"\n'),
        ("number", "[kafka]\nbootstrap = 9092\n"),
        ("agent", '[agent]\nkernel_file = "/var/log/kern.log"\n'),
        ("worker", '[worker]\ntick_s = "often"\n'),
        ("policy", '[worker]\npolicy = "no-such-policy.toml"\n'),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_call_ends_with_2_and_one_sentence(
    ringfence: Any, folder: Path, line: str, said: str
) -> None:
    result = ringfence(*shlex.split(line.replace("{folder}", str(folder))))
    assert result.exit_code == 2
    assert re.search(said, sentence(result))
    assert result.stdout == ""


def test_every_command_is_called_wrongly_above() -> None:
    called = [shlex.split(line) for line, _ in WRONG]
    missing = [
        name
        for name in commands(main)
        if not any(" ".join(words).find(name) >= 0 for words in called)
    ]
    assert missing == []


def test_where_no_kafka_answers_every_part_says_so_in_one_sentence(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port(None)}"
    calls = {
        name: [*name.split(), "--bootstrap", nowhere, *rest]
        for name, rest in {
            "demo": ["--within", "1"],
            "up": [],
            "worker": [],
            "sink": [],
            "scheduler exec": ["/bin/true"],
            "announce": ["reboot", "--host", "n1"],
            "isolate": ["node:n1"],
            "release": ["node:n1"],
            "isolation list": [],
            "isolation hold": ["node:n1"],
            "context reboot": ["n1"],
            "context list": [],
        }.items()
    }

    def call(name: str) -> subprocess.CompletedProcess[str]:
        data = str(tmp_path / name.replace(" ", "-"))
        return subprocess.run(
            [sys.executable, "-m", "ringfence", "--data", data, *calls[name]],
            env=os.environ | {"RINGFENCE_KAFKA_START_WITHIN_S": "1"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    with ThreadPoolExecutor(2) as pool:
        ended = dict(zip(calls, pool.map(call, calls), strict=True))
    said = {name: (one.returncode, one.stderr) for name, one in ended.items()}
    assert said == dict.fromkeys(calls, (2, f"Error: No Kafka answers at {nowhere} within 1 s.\n"))


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A warehouse in which nothing is stored yet, where the calls look for it."""
    root = tmp_path / "data" / "warehouse"
    prepare(root)
    return root


@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from xid_events", '"nothing" not found'),
        ("select 1; select 2", "one statement at a time"),
        ("drop view xid_events", "only read"),
        ("copy (select 1) to '/tmp/x.csv'", "only read"),
        ("", "one statement at a time"),
        ("select * from read_csv('/etc/passwd')", "(?i)permission|disabled"),
    ],
)
def test_sql_that_cannot_be_answered_is_one_sentence(
    ringfence: Any, statement: str, said: str
) -> None:
    result = ringfence("sql", statement)
    assert result.exit_code == 2
    assert re.search(said, sentence(result))


@pytest.mark.usefixtures("warehouse")
def test_sql_answers_as_a_table_or_as_json(ringfence: Any) -> None:
    answered = ringfence("sql", "select 7 as one, null as other", "--json")
    assert (answered.exit_code, json.loads(answered.stdout)) == (0, {"one": 7, "other": None})
    assert "one" in ringfence("sql", "select 7 as one").stdout
    nothing = ringfence("sql", "select * from xid_events", "--json")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "")


@pytest.mark.usefixtures("warehouse")
def test_why_of_a_command_that_nobody_gave_is_one_sentence(ringfence: Any) -> None:
    result = ringfence("why", "5f0f745cbcc7ff1ed8cd7028")
    assert result.exit_code == 2
    assert sentence(result) == "no command '5f0f745cbcc7ff1ed8cd7028' in the warehouse"
