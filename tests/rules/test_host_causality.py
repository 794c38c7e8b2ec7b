"""Which Xid explains which, from the lines as the driver prints them to the verdict.

The patterns are those of the Xid catalog and of published incidents; cards and addresses are ours.
"""

from typing import Any

import pytest

from evidence.decisions import Recovery, Status
from tests.rules.printed import (
    AER,
    AT_PEER,
    AT_PEER_V2,
    CHANNEL,
    CONTAINED,
    DBE,
    DRAIN,
    EXCEPTION,
    FAULT,
    FULL,
    GSP,
    HALTED,
    LINK,
    LOST,
    NOBODY,
    OWN_SIGNAL,
    REMAP,
    RESET,
    UNIT_ECC,
    asks,
    read,
    xid,
)

RULES: tuple[tuple[str, tuple[tuple[float, str], ...], tuple[str, ...], Recovery | None], ...] = (
    (
        "1: 48, its remap and a contained error are the memory, to be drained and reset",
        (
            (10, xid(2, DBE)),
            (10.028, xid(2, REMAP)),
            (10.036, xid(2, CONTAINED)),
            (10.1, xid(2, "94, pid=81234, name=python3, Ch 00000008")),
            (10.3, xid(2, CHANNEL)),
            (10.4, xid(2, DRAIN)),
        ),
        ("localized gpu-memory gpu2",),
        Recovery.DRAIN_RESET,
    ),
    (
        "2: 48 that finds no spare row is memory to be replaced",
        (
            (10, xid(2, DBE)),
            (10.03, xid(2, FULL)),
            (10.04, xid(2, f"95, {NOBODY}Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No")),
            (10.4, xid(2, RESET)),
        ),
        ("localized gpu-memory gpu2",),
        Recovery.REPLACE,
    ),
    (
        "2: 64 of a row that waits for its remap already is harmless",
        (
            (
                10,
                xid(
                    2,
                    "64, Row Remapper: (0x000000002c4f1a80) - Attempting to remap a row that is"
                    " already pending remapping. Remapping will occur when the GPU is reset",
                ),
            ),
        ),
        ("suspected gpu-memory gpu2",),
        None,
    ),
    (
        "3: 63 alone is an early warning",
        ((10, xid(2, REMAP)),),
        ("suspected gpu-memory gpu2",),
        Recovery.DRAIN_RESET,
    ),
    (
        "4: 48 alone asks for a reset",
        ((10, xid(2, DBE)),),
        ("suspected gpu-memory gpu2",),
        Recovery.RESET_GPU,
    ),
    (
        "4: 48 with 63 is drained first",
        ((10, xid(2, DBE)), (10.03, xid(2, REMAP))),
        ("localized gpu-memory gpu2",),
        Recovery.DRAIN_RESET,
    ),
    (
        "5: 94 hits one application",
        ((10, xid(2, CONTAINED)),),
        ("suspected gpu-memory gpu2",),
        Recovery.RESTART_APP,
    ),
    (
        "5: 94 whose flags ask for a reset is what the driver says, not what the table does",
        ((10, xid(2, f"94, {NOBODY}Contained: GSP (0x1). RST: Yes, D-RST: No")),),
        ("localized gpu-memory gpu2",),
        Recovery.RESET_GPU,
    ),
    (
        "5: 95 whose flags ask for none waits for more",
        ((10, xid(2, f"95, {NOBODY}Uncontained: LTC GPC (0x1,0x0). RST: No, D-RST: No")),),
        ("suspected gpu-memory gpu2",),
        None,
    ),
    (
        "6: 45 after another Xid is that one",
        ((10, xid(2, HALTED)), (10.2, xid(2, CHANNEL))),
        ("suspected gpu-firmware gpu2",),
        None,
    ),
    (
        "6: 45 that names the Xid before it outranks the table",
        ((10, xid(2, f"{CHANNEL} caused by previous Xid 109")),),
        ("suspected gpu-firmware gpu2",),
        None,
    ),
    (
        "6: 45 alone is an end of a process",
        ((10, xid(2, CHANNEL)),),
        ("software software gpu2",),
        None,
    ),
    (
        "7: 43 is the application",
        ((10, xid(2, "43, pid=70011, name=pt_main_thread, Ch 00000008")),),
        ("software software gpu2",),
        None,
    ),
    (
        "8: 13 once is the application",
        ((10, xid(2, EXCEPTION)),),
        ("software software gpu2",),
        Recovery.RESTART_APP,
    ),
    (
        "9: a port that fails, then 79, is the PCIe path",
        ((10, AER), (10.1, xid(5, LOST)), (10.4, xid(5, CHANNEL)), (10.5, xid(5, RESET))),
        ("localized pcie gpu5",),
        None,
    ),
    (
        "10: 74 on the neighbours of a lost GPU is the lost one",
        ((10, xid(1, LOST)), (10.1, xid(4, LINK)), (10.2, xid(6, LINK)), (10.4, xid(6, CHANNEL))),
        ("localized gpu-lost gpu1", "victim nvlink gpu4", "victim nvlink gpu6"),
        None,
    ),
    (
        "11: a fatal error of a switch port and 74 on its GPU are the switch",
        (
            (10, "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
            (
                10.00001,
                "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30"
                " Sub-engine instance 00",
            ),
            (10.1, xid(4, LINK)),
            (10.2, xid(5, LINK)),
        ),
        ("localized nvswitch node", "victim nvlink gpu4", "victim nvlink gpu5"),
        None,
    ),
    (
        "11: one port and the one GPU at its other end do not tell which end it was",
        (
            (10, "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
            (10.1, xid(4, LINK)),
        ),
        ("suspected nvlink node", "suspected nvlink nvlink4/9"),
        None,
    ),
    (
        "12: a link that lost its own signal",
        ((10, xid(3, OWN_SIGNAL)), (10.283, xid(3, CHANNEL)), (10.404, xid(3, DRAIN))),
        ("suspected nvlink nvlink3/8",),
        Recovery.DRAIN_RESET,
    ),
    (
        "12: a link that the other end lost does not accuse this one, whatever the driver asks",
        ((10, xid(3, AT_PEER)), (10.283, xid(3, CHANNEL)), (10.404, xid(3, RESET))),
        ("insufficient nvlink nvlink3/1",),
        Recovery.RESET_GPU,
    ),
    (
        "12: nor in the words of a newer driver",
        ((10, xid(3, AT_PEER_V2)), (10.283, xid(3, CHANNEL)), (10.404, xid(3, RESET))),
        ("insufficient nvlink nvlink3/1",),
        None,
    ),
    (
        "12: with a GPU that reported a fault of its own just then, that one is meant",
        ((10, xid(3, AT_PEER)), (10.0006, xid(6, OWN_SIGNAL)), (10.3, xid(3, CHANNEL))),
        ("suspected nvlink nvlink6/8", "victim nvlink gpu3"),
        None,
    ),
    (
        "13: an ECC error of a link's unit is the root of the 48 and 94 it leads to",
        ((10, xid(3, UNIT_ECC)), (10.001, xid(3, DBE)), (10.002, xid(3, CONTAINED))),
        ("localized nvlink gpu3",),
        None,
    ),
    (
        "13: and its poison at the other end is suffered",
        (
            (10, xid(3, UNIT_ECC)),
            (10.001, xid(3, DBE)),
            (10.002, xid(3, CONTAINED)),
            (10.1, xid(7, "94, pid=81239, name=python3, Ch 00000008")),
        ),
        ("localized nvlink gpu3", "victim gpu-memory gpu7"),
        None,
    ),
    (
        "14: a halted power unit stops the firmware's answers 45 s later",
        (
            (10, xid(2, HALTED)),
            (10.2, xid(2, CHANNEL)),
            (55, xid(2, GSP)),
            (55.4, xid(2, RESET)),
        ),
        ("localized gpu-firmware gpu2",),
        Recovery.RESET_GPU,
    ),
    (
        "15: 48 with its detail, a failed remap and a halt is the memory",
        (
            (10, xid(2, DBE)),
            (
                10.01,
                xid(
                    2,
                    "171, GDDR, Uncorrectable DRAM error in FBPA 3 subpartition 0"
                    " physAddr 0xe9b9107e0",
                ),
            ),
            (10.05, xid(2, FULL)),
            (12, xid(2, HALTED)),
        ),
        ("localized gpu-memory gpu2",),
        Recovery.REPLACE,
    ),
    (
        "16: 119 first and alone is the firmware, not the program that called",
        ((10, xid(2, GSP)),),
        ("suspected gpu-firmware gpu2",),
        Recovery.RESET_GPU,
    ),
    (
        "17: 119 after 79 is the lost GPU",
        ((10, xid(2, LOST)), (16, xid(2, GSP))),
        ("localized gpu-lost gpu2",),
        None,
    ),
    (
        "17: 119 after 48 is the memory",
        ((10, xid(2, DBE)), (55, xid(2, GSP))),
        ("suspected gpu-memory gpu2",),
        None,
    ),
    (
        "17: 119 after 74 is the link",
        ((10, xid(2, LINK)), (55, xid(2, GSP))),
        ("suspected nvlink nvlink2/9",),
        None,
    ),
    (
        "18: 31 after 122 is the power unit's flash, not the application",
        ((10, xid(2, f"122, {NOBODY}SPI PMU RPC read failure")), (10.05, xid(2, FAULT))),
        ("suspected gpu-firmware gpu2",),
        None,
    ),
    (
        "19: a storm of corrected errors is watched",
        (
            (
                10,
                xid(
                    2,
                    "92, Disabling ECC single-bit error interrupts in framebuffer at logical"
                    " partition 3, due to high error rate",
                ),
            ),
        ),
        ("suspected gpu-memory gpu2",),
        None,
    ),
    (
        "20: 154 chooses the action and is never the cause",
        ((10, xid(2, HALTED)), (10.4, xid(2, asks("0x2 (Node Reboot Required)")))),
        ("localized gpu-firmware gpu2",),
        Recovery.REBOOT_NODE,
    ),
    (
        "20: of two wishes the last counts",
        (
            (10, xid(2, HALTED)),
            (10.4, xid(2, DRAIN)),
            (10.6, xid(2, asks("0x1 (GPU Reset Required)", "0x4 (Drain and Reset)"))),
        ),
        ("localized gpu-firmware gpu2",),
        Recovery.RESET_GPU,
    ),
    (
        "21: a hung task after an Xid says nothing of its own",
        (
            (10, xid(2, DBE)),
            (10.1, xid(2, CONTAINED)),
            (140, "INFO: task python3:81234 blocked for more than 120 seconds."),
        ),
        ("localized gpu-memory gpu2",),
        None,
    ),
    (
        "22: the same Xid on all GPUs within a second is the node",
        tuple((10 + gpu / 20, xid(gpu, HALTED)) for gpu in range(8)),
        ("suspected node node",),
        None,
    ),
    (
        "a code that no table knows is told with its text",
        ((10, xid(2, "191, Something that came with a later driver")),),
        ("insufficient unknown gpu2",),
        None,
    ),
)


@pytest.mark.parametrize(
    ("sentence", "lines", "told", "recovery"),
    RULES,
    ids=[one[0].split(":")[0] + f"-{n}" for n, one in enumerate(RULES)],
)
def test_the_root_explains_the_rest(
    sentence: str,
    lines: Any,
    told: tuple[str, ...],
    recovery: Recovery | None,
    node: Any,
    records: Any,
) -> None:
    node.take(records.inventory(0))
    node.feed(read(*lines))
    node.run_on()
    assert node.told() == sorted(told), sentence
    if recovery is not None:
        assert {verdict.recovery for verdict in node.latest()} == {recovery}, sentence


@pytest.mark.parametrize(
    ("now", "recovery"),
    [
        ("0x1", Recovery.RESET_GPU),
        ("0x2", Recovery.REBOOT_NODE),
        ("0x4 (Drain and Reset)", Recovery.DRAIN_RESET),
    ],
)
def test_the_action_is_read_by_its_number_or_its_words(
    now: str, recovery: Recovery, node: Any
) -> None:
    node.feed(read((10, xid(2, HALTED)), (10.4, xid(2, asks(now)))))
    node.run_on()
    assert [verdict.recovery for verdict in node.latest()] == [recovery]


def test_an_unknown_code_shows_its_raw_line(node: Any) -> None:
    line = xid(2, "191, Something that came with a later driver")
    node.feed(read((10, line)))
    node.run_on()
    (told,) = node.latest()
    assert line in told.evidence[0].text


def test_a_peer_that_the_line_names_is_named(node: Any) -> None:
    node.feed(
        read((10, xid(3, f"74, {NOBODY}NVLink: Failed to train link 3 to remote PCI:0000:c3:00")))
    )
    node.run_on()
    (told,) = node.latest()
    assert told.status is Status.SUSPECTED
    assert "link 3 to 0000:c3:00" in told.reason


def test_a_victim_whom_the_driver_asks_to_reset_stays_one(node: Any, records: Any) -> None:
    """Field 230 of NVML stands on every GPU whose link went with the lost one."""
    node.feed(records.quiet())
    node.feed(read((10, xid(1, LOST)), (10.1, xid(4, LINK)), (10.4, xid(4, RESET))))
    node.take(records.frame((11, {4: {"recovery_action": 1}})))
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu1", "victim nvlink gpu4"]
