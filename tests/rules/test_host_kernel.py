"""What the host stage concludes from a kernel log, on one GPU and across linked ones.

Each case: its sentence, the records, the last word on each incident (none: silence).
"""

from typing import Any

import pytest

from evidence.records import KernelKind

PEER_REASON = (33 << 20 | 0x5C6, 0, 0, 0, 0, 0)
OWN_REASON = (4 << 20 | 0x5C6, 0, 0, 0, 0, 0)


KERNEL = (
    ("a node at rest says nothing", lambda r: r.quiet()),
    ("48 with 63 and 94 is the memory", lambda r: r.chain(), ("localized gpu-memory gpu0",)),
    (
        "48 alone waits for a second witness",
        lambda r: [r.kernel(1, code=48)],
        ("suspected gpu-memory gpu0",),
    ),
    (
        "48 and its detail 171 are two units of the driver",
        lambda r: [r.kernel(1, code=48), r.kernel(1.1, code=171)],
        ("localized gpu-memory gpu0",),
    ),
    (
        "63 alone is an early warning",
        lambda r: [r.kernel(1, code=63)],
        ("suspected gpu-memory gpu0",),
    ),
    (
        "64 without a spare row is the vendor's ground for replacement",
        lambda r: [r.kernel(1, code=64, message="All reserved rows for bank are remapped")],
        ("localized gpu-memory gpu0",),
    ),
    (
        "64 of a row that waits already is harmless",
        lambda r: [
            r.kernel(1, code=64, message="Attempting to remap a row that is already pending")
        ],
        ("suspected gpu-memory gpu0",),
    ),
    (
        "95 that wants a reset is hard",
        lambda r: [r.kernel(1, code=95, reset=True, drain_reset=False)],
        ("localized gpu-memory gpu0",),
    ),
    (
        "94 that wants no reset is not",
        lambda r: [r.kernel(1, code=94, reset=False, drain_reset=False)],
        ("suspected gpu-memory gpu0",),
    ),
    ("92 is watched", lambda r: [r.kernel(1, code=92)], ("suspected gpu-memory gpu0",)),
    ("79 is enough alone", lambda r: [r.kernel(1, code=79)], ("localized gpu-lost gpu0",)),
    (
        "a GPU found fallen off at probe has no Xid",
        lambda r: [r.kernel(1, kind=KernelKind.NVRM, code=79)],
        ("localized gpu-lost gpu0",),
    ),
    (
        "79 after its port's error is the PCIe path",
        lambda r: [r.port(1, "fatal"), r.kernel(1.1, code=79)],
        ("localized pcie gpu0",),
    ),
    (
        "79 after a corrected error of the port is the GPU",
        lambda r: [r.port(1, "correctable"), r.kernel(1.1, code=79)],
        ("localized gpu-lost gpu0",),
    ),
    (
        "79 with a port error in another PCI domain is the GPU",
        lambda r: [r.port(1, "fatal", "0001:1a:02"), r.kernel(1.1, code=79)],
        ("localized gpu-lost gpu0", "suspected pcie node"),
    ),
    ("a port error alone is suspected", lambda r: [r.port(1, "fatal")], ("suspected pcie node",)),
    ("a corrected port error is noise", lambda r: [r.port(1, "correctable")]),
    (
        "119 alone is the firmware",
        lambda r: [r.kernel(1, code=119)],
        ("suspected gpu-firmware gpu0",),
    ),
    (
        "119 after 62 is the power unit's halt, and 154 only picks the action",
        lambda r: [
            r.kernel(1, code=62),
            r.kernel(1.2, code=45),
            r.kernel(46, code=119),
            r.kernel(46.4, code=154, recovery_action="GPU Reset Required"),
        ],
        ("localized gpu-firmware gpu0",),
    ),
    (
        "119 after 79 is the lost GPU",
        lambda r: [r.kernel(1, code=79), r.kernel(7, code=119)],
        ("localized gpu-lost gpu0",),
    ),
    (
        "31 after 122 is the power unit, not the application",
        lambda r: [r.kernel(1, code=122), r.kernel(1.05, code=31)],
        ("suspected gpu-firmware gpu0",),
    ),
    ("31 alone is the application", lambda r: [r.kernel(1, code=31)], ("software software gpu0",)),
    (
        "13 and 43 by the hundred are the application",
        lambda r: [r.kernel(1 + n / 200, code=43 if n % 3 else 13) for n in range(300)],
        ("software software gpu0",),
    ),
    (
        "45 alone is somebody's Ctrl-C",
        lambda r: [r.kernel(1, code=45)],
        ("software software gpu0",),
    ),
    (
        "45 that names its cause stands in for the missing line",
        lambda r: [r.kernel(1, code=45, caused_by=62)],
        ("suspected gpu-firmware gpu0",),
    ),
    (
        "an unknown code is told, never dropped",
        lambda r: [r.kernel(1, code=888, message="something new")],
        ("insufficient unknown gpu0",),
    ),
    (
        "a driver error of a copy engine accuses nobody",
        lambda r: [r.kernel(1, code=39)],
        ("insufficient unknown gpu0",),
    ),
    ("an injected test error is nothing", lambda r: [r.kernel(1, code=14)]),
    (
        "144 of an old driver was a key rotation",
        lambda r: [r.inventory(0, driver="550.90.07"), r.kernel(1, code=144)],
        ("insufficient unknown gpu0",),
    ),
    (
        "154 alone that wants a reset is a GPU out of order",
        lambda r: [r.kernel(1, code=154, recovery_action="GPU Reset Required")],
        ("localized gpu-lost gpu0",),
    ),
    (
        "154 back to none ends what was told",
        lambda r: [*r.chain(), r.kernel(90, code=154, recovery_action="None")],
        ("recovered gpu-memory gpu0",),
    ),
    (
        "154 to none with nothing told is nothing",
        lambda r: [r.kernel(1, code=154, recovery_action="None")],
    ),
)

LINKS = (
    (
        "74 on a link is suspected, with the link",
        lambda r: [r.kernel(1, code=74, link=14)],
        ("suspected nvlink nvlink0/14",),
    ),
    (
        "74 on the neighbours of a lost GPU is its victims",
        lambda r: [
            r.kernel(1, 2, code=79),
            r.kernel(1.2, 3, code=74, link=4),
            r.kernel(1.3, 5, code=74, link=9),
        ],
        ("localized gpu-lost gpu2", "victim nvlink gpu3", "victim nvlink gpu5"),
    ),
    (
        "74 long before another GPU is lost speaks for itself",
        lambda r: [r.kernel(1, 3, code=74, link=4), r.kernel(120, 2, code=79)],
        ("localized gpu-lost gpu2", "suspected nvlink nvlink3/4"),
    ),
    (
        "149 whose reason names the peer does not accuse its own GPU",
        lambda r: [
            r.kernel(1, code=149, link=1, registers=PEER_REASON, severity="fatal"),
            r.kernel(1.3, code=45),
            r.kernel(1.4, code=154, recovery_action="GPU Reset Required"),
        ],
        ("insufficient nvlink nvlink0/1",),
    ),
    (
        "149 whose reason names its own signal does",
        lambda r: [r.kernel(1, code=149, link=1, registers=OWN_REASON, severity="fatal")],
        ("suspected nvlink nvlink0/1",),
    ),
    (
        "poison from a neighbour's broken memory is suffered",
        lambda r: [*r.chain(10, 1), r.kernel(10.1, 6, code=94), r.kernel(10.2, 6, code=45)],
        ("localized gpu-memory gpu1", "victim gpu-memory gpu6"),
    ),
    (
        "a fatal switch error and its GPUs' links are the switch",
        lambda r: [
            r.sxid(1, 20034, "fatal"),
            r.sxid(1, 20034, None),
            r.kernel(1.2, 3, code=74, link=4),
            r.kernel(1.3, 5, code=74, link=4),
        ],
        ("localized nvswitch node", "victim nvlink gpu3", "victim nvlink gpu5"),
    ),
    (
        "a fatal switch error alone is suspected",
        lambda r: [r.sxid(1, 20034, "fatal")],
        ("suspected nvswitch node",),
    ),
    (
        "a switch error after its GPU was lost is its victim",
        lambda r: [r.kernel(1, 3, code=79), r.sxid(1.5, 20034, "fatal")],
        ("localized gpu-lost gpu3", "victim nvswitch node"),
    ),
    ("a corrected switch error is noise", lambda r: [r.sxid(1, 11021, "non-fatal")]),
    (
        "an unknown switch code is told",
        lambda r: [r.sxid(1, 39999, "fatal")],
        ("insufficient nvswitch node",),
    ),
)

CASES: tuple[tuple[Any, ...], ...] = (
    *KERNEL,
    *LINKS,
)


@pytest.mark.parametrize("case", CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_a_case_is_judged_as_it_should(case: tuple[Any, ...], node: Any, records: Any) -> None:
    _, build, *expected = case
    for record in sorted(build(records), key=lambda one: one.observed_at):
        node.take(record)
    node.run_on()
    assert node.told() == sorted(expected[0] if expected else ())
