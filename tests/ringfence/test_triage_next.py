"""The commands that would settle an unsure verdict are the right ones for the named part."""

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from evidence.decisions import Cause, Domain, DomainKind, Status, Verdict
from ringfence import show
from ringfence.next_steps import Step, of

AT = datetime(2026, 9, 10, 9, 40, 0, tzinfo=UTC)
CARD = Domain(kind=DomainKind.GPU, host="n1", pci="0000:9d:00", index=6)


def verdict(
    domain: Domain, *missing: str, status: Status = Status.SUSPECTED, **more: Any
) -> Verdict:
    fields = {"at": AT, "cause": Cause.UNKNOWN, "host": domain.host} | more
    return Verdict(
        id="v", incident="i", revision=1, decided_at=AT, status=status, domain=domain,
        confidence=0.3, reason="because", missing=missing, **fields,
    )  # fmt: skip


def commands(domain: Domain, *missing: str, **more: Any) -> list[tuple[str | None, str]]:
    return [(one.on, one.command) for one in of(verdict(domain, *missing, **more))]


def test_a_missing_kernel_log_is_asked_of_the_host_around_the_time() -> None:
    asked = commands(CARD, "kernel log of the host")
    assert asked[:2] == [
        (
            "n1",
            "journalctl -k -o short-iso --since '2026-09-10 09:25:00 UTC' "
            "--until '2026-09-10 09:55:00 UTC'",
        ),
        ("n1", "TZ=UTC dmesg -T --since '2026-09-10 09:25:00'"),
    ]


def test_a_log_without_wall_clock_asks_for_this_boot() -> None:
    asked = commands(CARD, "kernel log of the host", at=datetime(1970, 1, 2, 0, 13, tzinfo=UTC))
    assert asked[:2] == [("n1", "journalctl -k -o short-iso -b"), ("n1", "TZ=UTC dmesg -T")]


@pytest.mark.parametrize(
    ("domain", "command"),
    [
        (CARD, "nvidia-smi -q -i 0000:9d:00.0"),
        (Domain(kind=DomainKind.GPU, host="n1", uuid="GPU-3a3a"), "nvidia-smi -q -i GPU-3a3a"),
        (Domain(kind=DomainKind.GPU, host="n1", index=3), "nvidia-smi -q -i 3"),
        (Domain(kind=DomainKind.GPU, host="n1", rank=3), "nvidia-smi -q"),
        # The address of a node's domain is that of a port, which is no card of nvidia-smi's.
        (Domain(kind=DomainKind.NODE, host="n1", pci="0000:00:03"), "nvidia-smi -q"),
    ],
)
def test_readings_are_asked_of_the_card_by_the_surest_name(domain: Domain, command: str) -> None:
    assert commands(domain, "NVML snapshots of the GPU after the event")[0] == ("n1", command)


def test_a_suspected_card_is_to_be_tried_out_once_its_node_is_drained() -> None:
    (step,) = (one for one in of(verdict(CARD)) if one.command.startswith("dcgmi"))
    assert (step.on, step.command) == ("n1", "dcgmi diag -r 3 -i 6")
    assert "drain" in step.why


def test_a_hung_rank_is_looked_at_on_its_own_card() -> None:
    card = Domain(kind=DomainKind.GPU, host="n1", pci="0000:9d:00", rank=14)
    assert (
        "n1",
        "for pid in $(nvidia-smi --query-compute-apps=pid --format=csv,noheader "
        "-i 0000:9d:00.0); do py-spy dump --pid $pid; done",
    ) in commands(card)


def test_a_missing_job_log_is_switched_on_for_the_next_start() -> None:
    told = commands(Domain(kind=DomainKind.JOB, job="train-7"), status=Status.INSUFFICIENT)
    (command,) = (one for _, one in told if one.startswith("export"))
    assert {"NCCL_DEBUG=INFO", "TORCH_NCCL_DUMP_ON_TIMEOUT=1"} <= set(command.split())
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE=2000" in command
    assert command.endswith("# job train-7")


@pytest.mark.parametrize(
    ("domain", "wanted"),
    [
        (
            Domain(kind=DomainKind.LINK, switch="0x248a0703008a85d0", port=12),
            [
                (None, "ibqueryerrors --details -G 0x248a0703008a85d0"),
                (None, "perfquery -x -G 0x248a0703008a85d0 12"),
            ],
        ),
        (
            Domain(kind=DomainKind.LINK, switch="lid:44", port=3),
            [(None, "perfquery -x 44 3"), (None, "mlxlink -d lid-44 -p 3 -m -c")],
        ),
        (
            Domain(kind=DomainKind.LINK, host="n1", switch="device:mlx5_3", port=1),
            [("n1", "mlxlink -d mlx5_3 -m -c")],
        ),
        (Domain(kind=DomainKind.LINK, host="n1"), [("n1", "ibstat")]),
    ],
)
def test_a_link_is_looked_up_by_the_name_it_is_known_by(
    domain: Domain, wanted: list[tuple[str | None, str]]
) -> None:
    assert commands(domain) == wanted


def test_an_nvswitch_is_no_switch_of_the_fabric() -> None:
    told = commands(Domain(kind=DomainKind.SWITCH, host="n1", pci="0000:87:00"))
    assert ("n1", "nvidia-smi nvlink -e") in told
    assert any(command.startswith("journalctl -u nvidia-fabricmanager") for _, command in told)
    assert not any("ib" in command.split()[0] for _, command in told)


def test_what_is_below_a_port_is_asked_of_the_bus() -> None:
    port = Domain(kind=DomainKind.NODE, host="n1", pci="0000:00:03")
    told = commands(port, "which device is below that port")
    assert told[:2] == [("n1", "lspci -vvv -s 0000:00:03"), ("n1", "lspci -tvnn")]


@pytest.mark.parametrize("kind", list(DomainKind))
def test_every_kind_of_part_has_a_next_step_and_none_twice(kind: DomainKind) -> None:
    for status in (Status.SUSPECTED, Status.INSUFFICIENT):
        told = commands(Domain(kind=kind, host="n1"), "kernel log of the host", status=status)
        assert 0 < len(set(told)) == len(told) <= 8


@pytest.mark.parametrize("status", [Status.LOCALIZED, Status.SOFTWARE, Status.RECOVERED])
def test_a_sure_verdict_has_none(status: Status) -> None:
    assert of(verdict(CARD, "kernel log of the host", status=status)) == ()


def test_a_name_that_is_no_word_of_the_shell_is_quoted() -> None:
    told = commands(Domain(kind=DomainKind.JOB, job="a b; rm"), status=Status.INSUFFICIENT)
    assert any("'a b; rm'" in command for _, command in told)


def test_a_person_reads_them_below_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show.verdict(Console(width=300), verdict(CARD, "NVML snapshots of the GPU after the event"))
    told = capsys.readouterr().out
    step = Step(on="n1", command="nvidia-smi -q -i 0000:9d:00.0", why="")
    assert f"run on {step.on}: {step.command} #" in told
