"""`nvidia-smi -q` as text: the layouts of its drivers, and outputs that are lost or broken."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from collectors.nvidia_smi import parse_stream, recognise
from evidence.records import GpuFrame, GpuProcess, GpuSnapshot, GpuStatus, MigInstance

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
HOST = "hgx-c4-n07"


def parse(text: str, host: str | None = HOST) -> list[GpuFrame]:
    lines = text.encode().splitlines(keepends=True)
    return list(parse_stream(lines, host=host, now=NOW, file="smi.txt"))


def cards(text: str) -> tuple[GpuSnapshot, ...]:
    (frame,) = parse(text)
    return frame.ticks[0].gpus


def card(text: str) -> GpuSnapshot:
    (found,) = cards(text)
    return found


HEAD = """
==============NVSMI LOG==============

Timestamp                           : Tue Mar  3 04:05:06 2026
Driver Version                      : {driver}
CUDA Version                        : 12.2

Attached GPUs                       : {count}
"""

V100 = (
    HEAD.format(driver="440.64.00", count=1)
    + """\
GPU 00000000:1A:00.0
    Product Name                    : Tesla V100-SXM2-32GB
    Persistence Mode                : Enabled
    Serial Number                   : 0320918000111
    GPU UUID                        : GPU-5d2f0a77-1c1d-4b0e-9f7e-0a1b2c3d4e5f
    Minor Number                    : 0
    PCI
        Bus                         : 0x1A
        Bus Id                      : 00000000:1A:00.0
        GPU Link Info
            PCIe Generation
                Max                 : 3
                Current             : 1
            Link Width
                Max                 : 16x
                Current             : 8x
        Replays Since Reset         : 12
    Performance State               : P0
    Clocks Throttle Reasons
        Idle                        : Not Active
        Applications Clocks Setting : Active
        SW Power Cap                : Active
        HW Slowdown                 : Active
            HW Thermal Slowdown     : Active
            HW Power Brake Slowdown : Not Active
        Sync Boost                  : Not Active
        SW Thermal Slowdown         : Not Active
        Display Clock Setting       : Not Active
    FB Memory Usage
        Total                       : 32510 MiB
        Used                        : 11 MiB
        Free                        : 32499 MiB
    BAR1 Memory Usage
        Total                       : 32768 MiB
        Used                        : 2 MiB
    Utilization
        Gpu                         : 97 %
        Memory                      : 4 %
    Ecc Mode
        Current                     : Enabled
        Pending                     : Disabled
    ECC Errors
        Volatile
            Single Bit            \n\
                Device Memory       : 7
                Register File       : 1
                L1 Cache            : 0
                L2 Cache            : 2
                Texture Memory      : N/A
                Texture Shared      : N/A
                CBU                 : N/A
                Total               : 10
            Double Bit            \n\
                Device Memory       : 3
                Register File       : 0
                L1 Cache            : 0
                L2 Cache            : 0
                Texture Memory      : N/A
                Texture Shared      : N/A
                CBU                 : 0
                Total               : 3
        Aggregate
            Single Bit            \n\
                Device Memory       : 54731746511
                Register File       : 1
                L1 Cache            : 0
                L2 Cache            : 2
                Texture Memory      : N/A
                Texture Shared      : N/A
                CBU                 : N/A
                Total               : 54731746514
            Double Bit            \n\
                Device Memory       : 5
                Register File       : 0
                L1 Cache            : 0
                L2 Cache            : 0
                Texture Memory      : N/A
                Texture Shared      : N/A
                CBU                 : 0
                Total               : 5
    Retired Pages
        Single Bit ECC              : 4
        Double Bit ECC              : 2
        Pending Page Blacklist      : Yes
    Temperature
        GPU Current Temp            : 61 C
        GPU Shutdown Temp           : 90 C
        GPU Slowdown Temp           : 87 C
        GPU Max Operating Temp      : 83 C
        Memory Current Temp         : 58 C
        Memory Max Operating Temp   : 85 C
    Power Readings
        Power Management            : Supported
        Power Draw                  : 291.30 W
        Power Limit                 : 310.00 W
        Default Power Limit         : 300.00 W
        Enforced Power Limit        : 300.00 W
    Clocks
        Graphics                    : 1290 MHz
        SM                          : 1290 MHz
        Memory                      : 877 MHz
    Max Clocks
        SM                          : 1530 MHz
    Processes
        Process ID                  : 70311
            Type                    : C
            Name                    : python3
            Used GPU Memory         : 2048 MiB
        Process ID                  : 70399
            Type                    : C
            Name                    : [Not Found]
            Used GPU Memory         : N/A
"""
)


def test_everything_of_a_pre_ampere_card_is_read() -> None:
    (frame,) = parse(V100)
    assert (frame.host, frame.driver, frame.source) == (HOST, "440.64.00", "nvidia-smi")
    assert frame.observed_at == NOW
    (tick,) = frame.ticks
    assert tick.at == datetime(2026, 3, 3, 4, 5, 6, tzinfo=UTC)
    (found,) = tick.gpus
    assert found == GpuSnapshot(
        index=0,
        uuid="GPU-5d2f0a77-1c1d-4b0e-9f7e-0a1b2c3d4e5f",
        serial="0320918000111",
        pci="0000:1a:00",
        name="Tesla V100-SXM2-32GB",
        ecc_enabled=True,
        ecc_enabled_pending=False,
        ecc_volatile_corrected=10,
        ecc_volatile_uncorrected=3,
        ecc_aggregate_corrected=54731746514,
        ecc_aggregate_uncorrected=5,
        ecc_locations={
            "volatile_corrected_dram": 7,
            "volatile_corrected_register_file": 1,
            "volatile_corrected_l1_cache": 0,
            "volatile_corrected_l2_cache": 2,
            "volatile_uncorrected_dram": 3,
            "volatile_uncorrected_register_file": 0,
            "volatile_uncorrected_l1_cache": 0,
            "volatile_uncorrected_l2_cache": 0,
            "volatile_uncorrected_cbu": 0,
            "aggregate_corrected_dram": 54731746511,
            "aggregate_corrected_register_file": 1,
            "aggregate_corrected_l1_cache": 0,
            "aggregate_corrected_l2_cache": 2,
            "aggregate_uncorrected_dram": 5,
            "aggregate_uncorrected_register_file": 0,
            "aggregate_uncorrected_l1_cache": 0,
            "aggregate_uncorrected_l2_cache": 0,
            "aggregate_uncorrected_cbu": 0,
        },
        retired_pages=6,
        retired_pages_sbe=4,
        retired_pages_dbe=2,
        retired_pending=True,
        temperature_c=61,
        temperature_memory_c=58,
        temperature_slowdown_c=87,
        temperature_shutdown_c=90,
        temperature_max_c=83,
        temperature_memory_max_c=85,
        power_w=291.3,
        power_limit_w=300.0,
        utilization_pct=97,
        memory_used_mib=11,
        memory_total_mib=32510,
        clock_sm_mhz=1290,
        clock_sm_max_mhz=1530,
        clock_memory_mhz=877,
        clocks_event_reasons=0x2 | 0x4 | 0x8 | 0x40,
        pcie_replays=12,
        pcie_width=8,
        pcie_width_max=16,
        pcie_generation=1,
        pcie_generation_max=3,
        persistence_mode=True,
        performance_state=0,
        processes=(
            GpuProcess(pid=70311, name="python3", memory_used_mib=2048),
            GpuProcess(pid=70399),
        ),
    )


AMPERE = """\
GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    GPU UUID                              : GPU-{bus}000000-aaaa-bbbb-cccc-1234567890ab
    GPU Reset Status
        Reset Required                    : {reset}
        Drain and Reset Recommended       : {drain}
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable            : 2
            DRAM Correctable              : 40
            DRAM Uncorrectable            : 300
        Aggregate
            SRAM Correctable              : 5
            SRAM Uncorrectable            : 6
            DRAM Correctable              : 700
            DRAM Uncorrectable            : 8000
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 9
        Pending                           : No
        Remapping Failure Occurred        : Yes
        Bank Remap Availability Histogram
            Max                           : 633 bank(s)
            High                          : 4 bank(s)
            Partial                       : 2 bank(s)
            Low                           : 0 bank(s)
            None                          : 1 bank(s)
"""


def test_totals_of_an_ampere_card_are_the_sums_over_its_memories() -> None:
    text = HEAD.format(driver="525.105.17", count=1) + AMPERE.format(
        bus="27", reset="No", drain="Yes"
    )
    found = card(text)
    assert (found.ecc_volatile_corrected, found.ecc_volatile_uncorrected) == (41, 302)
    assert (found.ecc_aggregate_corrected, found.ecc_aggregate_uncorrected) == (705, 8006)
    assert (found.remapped_correctable, found.remapped_uncorrectable) == (1, 9)
    assert (found.remap_pending, found.remap_failure) == (False, True)
    assert found.remap_banks == {"max": 633, "high": 4, "partial": 2, "low": 0, "none": 1}
    assert found.recovery_action == 4
    assert found.retired_pages is None
    assert found.unread["retired_pages"] == "N/A"


def test_a_reset_that_is_required_is_the_recovery_action() -> None:
    text = HEAD.format(driver="525.105.17", count=2)
    text += AMPERE.format(bus="27", reset="Yes", drain="No")
    text += AMPERE.format(bus="2A", reset="No", drain="No")
    first, second = cards(text)
    assert (first.index, first.pci, first.recovery_action) == (0, "0000:27:00", 1)
    assert (second.index, second.pci, second.recovery_action) == (1, "0000:2a:00", None)


HOPPER = """\
GPU 00000000:9A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Disabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU Recovery Action                   : {action}
    Clocks Event Reasons                  : N/A
    Clocks Event Reasons Counters
        SW Power Capping                  : 1200 us
        Sync Boost                        : 0 us
        SW Thermal Slowdown               : 7 us
        HW Thermal Slowdown               : 0 us
        HW Power Braking                  : 31 us
    ECC Errors
        Volatile
            SRAM Correctable              : 2
            SRAM Uncorrectable Parity     : 3
            SRAM Uncorrectable SEC-DED    : 4
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 1
        Aggregate
            SRAM Correctable              : 20
            SRAM Uncorrectable Parity     : 30
            SRAM Uncorrectable SEC-DED    : 40
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 10
            SRAM Threshold Exceeded       : Yes
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 50
            SRAM SM                       : 11
            SRAM Microcontroller          : 6
            SRAM PCIE                     : 2
            SRAM Other                    : 1
        Channel Repair Pending            : Yes
        TPC Repair Pending                : No
        Unrepairable Memory               : Yes
    Remapped Rows                         : N/A
    Temperature
        GPU Current Temp                  : 71 C
        GPU T.Limit Temp                  : -3 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        GPU Max Operating T.Limit Temp    : 0 C
        Memory Current Temp               : 88 C
        Memory Max Operating T.Limit Temp : 0 C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : 644.02 W
        Current Power Limit               : 650.00 W
        Requested Power Limit             : 700.00 W
    Module Power Readings
        Average Power Draw                : 900.00 W
        Current Power Limit               : 1000.00 W
    Fabric
        State                             : In Progress
        Status                            : N/A
        CliqueId                          : 3
        ClusterUUID                       : 6b1c0f52-7e11-4a0d-8a53-2f0d8c9b7a61
    Processes                             : None
"""


def test_sram_by_protection_margins_and_repairs_of_a_hopper_card_are_read() -> None:
    found = card(HEAD.format(driver="595.58.03", count=1) + HOPPER.format(action="Node Reboot"))
    assert found == GpuSnapshot(
        index=0,
        pci="0000:9a:00",
        name="NVIDIA H100 80GB HBM3",
        unread={
            "clocks_event_reasons": "N/A",
            "fabric_status": "N/A",
            "remap_banks": "N/A",
            "remap_failure": "N/A",
            "remap_pending": "N/A",
            "remapped_correctable": "N/A",
            "remapped_correctable_inactive": "N/A",
            "remapped_uncorrectable": "N/A",
            "remapped_uncorrectable_inactive": "N/A",
        },
        ecc_volatile_corrected=2,
        ecc_volatile_uncorrected=8,
        ecc_aggregate_corrected=20,
        ecc_aggregate_uncorrected=80,
        ecc_locations={
            "volatile_corrected_sram": 2,
            "volatile_corrected_dram": 0,
            "volatile_uncorrected_dram": 1,
            "aggregate_corrected_sram": 20,
            "aggregate_corrected_dram": 0,
            "aggregate_uncorrected_dram": 10,
        },
        sram_threshold_exceeded=True,
        sram_volatile_parity=3,
        sram_volatile_secded=4,
        sram_aggregate_parity=30,
        sram_aggregate_secded=40,
        sram_sources={"l2": 50, "sm": 11, "mcu": 6, "pcie": 2, "other": 1},
        channel_repair_pending=True,
        tpc_repair_pending=False,
        unrepairable_memory=True,
        recovery_action=2,
        temperature_c=71,
        temperature_memory_c=88,
        temperature_margin_c=-3,
        temperature_margin_slowdown=-2,
        temperature_margin_shutdown=-8,
        temperature_margin_max=0,
        temperature_margin_memory_max=0,
        power_w=644.02,
        power_limit_w=650.0,
        throttled_ns={
            "power_cap": 1_200_000,
            "sync_boost": 0,
            "sw_thermal": 7000,
            "hw_thermal": 0,
            "power_brake": 31_000,
        },
        fabric_state="in-progress",
        fabric_clique=3,
        fabric_cluster_uuid="6b1c0f52-7e11-4a0d-8a53-2f0d8c9b7a61",
        persistence_mode=False,
        mig_enabled=False,
        processes=(),
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("None", 0),
        ("Reset", 1),
        ("GPU Reset", 1),
        ("Reboot", 2),
        ("Drain P2P", 3),
        ("Drain and Reset", 4),
        ("Recover IMEX Domain", 5),
        ("Something New", None),
    ],
)
def test_the_recovery_action_gets_the_number_of_nvml(words: str, number: int | None) -> None:
    found = card(HEAD.format(driver="580.10", count=1) + HOPPER.format(action=words))
    assert found.recovery_action == number
    assert ("recovery_action" in found.unread) == (number is None)


def test_mig_instances_and_the_processes_on_them_are_told_apart() -> None:
    text = HEAD.format(driver="550.54.15", count=1) + (
        """\
GPU 00000000:43:00.0
    MIG Mode
        Current                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 1
        Compute Instance ID               : 0
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 5
        Shared FB Memory Usage
            Used                          : 12 MiB
    MIG Device
        Index                             : 1
        GPU Instance ID                   : 11
        Compute Instance ID               : 2
    Processes
        GPU instance ID                   : 11
        Compute instance ID               : 2
        Process ID                        : 4411
            Type                          : C
            Name                          : /usr/bin/train --lr: 3e-4
            Used GPU Memory               : 9 MiB
        GPU instance ID                   : 1
        Compute instance ID               : 0
        Process ID                        : 4412
            Name                          : python
"""
    )
    found = card(text)
    assert found.mig == (MigInstance(gi=1, ci=0), MigInstance(gi=11, ci=2))
    assert found.processes == (
        GpuProcess(pid=4411, name="/usr/bin/train --lr: 3e-4", memory_used_mib=9, gi=11, ci=2),
        GpuProcess(pid=4412, name="python", gi=1, ci=0),
    )
    assert found.ecc_volatile_uncorrected is None  # the instance's, not the card's
    assert found.memory_used_mib is None


def test_a_card_whose_fields_say_lost_is_lost_and_the_others_are_not() -> None:
    text = HEAD.format(driver="535.161.08", count=2)
    text += AMPERE.format(bus="27", reset="No", drain="No")
    text += (
        "GPU 00000000:2A:00.0\n"
        "    Product Name                          : GPU is lost\n"
        "    GPU UUID                              : GPU is lost\n"
        "    ECC Errors                            : GPU is lost\n"
        "    Remapped Rows                         : GPU is lost\n"
    )
    well, lost = cards(text)
    assert (well.status, well.error) == (GpuStatus.OK, None)
    assert (lost.index, lost.status, lost.error) == (1, GpuStatus.LOST, 15)
    assert lost.uuid is None
    assert lost.unread["uuid"] == lost.unread["ecc_volatile_uncorrected"] == "GPU is lost"
    assert lost.remapped_uncorrectable is None


def test_a_card_that_requires_a_reset_says_so() -> None:
    text = HEAD.format(driver="535.161.08", count=1) + (
        "GPU 00000000:2A:00.0\n"
        "    Temperature\n"
        "        GPU Current Temp                  : [GPU requires reset]\n"
    )
    found = card(text)
    assert (found.status, found.error) == (GpuStatus.RESET_REQUIRED, 16)
    assert found.unread == {"temperature_c": "GPU requires reset"}


def test_one_odd_error_is_a_value_not_read_and_many_are_a_card_in_trouble() -> None:
    odd = HEAD.format(driver="535.161.08", count=1) + (
        "GPU 00000000:2A:00.0\n"
        "    Performance State                     : P2\n"
        "    Persistence Mode                      : Enabled\n"
        "    Temperature\n"
        "        GPU Current Temp                  : Unknown Error\n"
    )
    found = card(odd)
    assert (found.status, found.temperature_c) == (GpuStatus.OK, None)
    assert found.unread == {"temperature_c": "Unknown Error"}
    found = card(odd.replace("P2", "Unknown Error").replace(": Enabled", ": Unknown Error"))
    assert (found.status, found.error) == (GpuStatus.ERROR, 999)


def test_a_message_between_the_sections_is_the_card_that_lacks_its_section() -> None:
    text = HEAD.format(driver="535.161.08", count=3)
    text += AMPERE.format(bus="27", reset="No", drain="No")
    text += (
        "Unable to determine the device handle for GPU 0000:2A:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n"
    )
    text += AMPERE.format(bus="51", reset="No", drain="No")
    assert [(one.index, one.pci, one.status) for one in cards(text)] == [
        (0, "0000:27:00", GpuStatus.OK),
        (1, "0000:2a:00", GpuStatus.LOST),
        (2, "0000:51:00", GpuStatus.OK),
    ]


def test_where_fewer_cards_are_shown_than_counted_no_index_is_made_up() -> None:
    text = HEAD.format(driver="535.161.08", count=8)
    found = card(text + AMPERE.format(bus="51", reset="No", drain="No"))
    assert found.index == -1
    assert found.unread["index"] == "not in the output"


def test_renamed_and_garbled_keys_cost_only_their_own_values() -> None:
    text = HEAD.format(driver="535.161.08", count=1) + (
        AMPERE.format(bus="27", reset="No", drain="No")
        .replace("SRAM Uncorrectable  ", "SRAM Uncorrectible  ")
        .replace("Remapping Failure Occurred", "Remapping Failure Happened")
        .replace(": 9\n", ": nine\n")
        .replace("            High", "  ::  High")
    )
    found = card(text)
    assert found.ecc_volatile_corrected == 41
    assert found.ecc_volatile_uncorrected is None
    assert found.unread["ecc_volatile_uncorrected"] == "not all memories could be read"
    assert found.unread["remapped_uncorrectable"] == "unreadable: 'nine'"
    assert found.remap_failure is None
    assert found.remapped_correctable == 1
    assert found.remap_banks is not None
    assert "high" not in found.remap_banks


@pytest.mark.parametrize("kept", range(0, len(V100), 97))
def test_a_text_that_is_cut_anywhere_tells_nothing_that_is_not_in_it(kept: int) -> None:
    whole = card(V100)
    for frame in parse(V100[:kept]):
        for found in frame.ticks[0].gpus:
            for name in ("ecc_volatile_corrected", "temperature_c", "pcie_replays", "power_w"):
                assert getattr(found, name) in (None, getattr(whole, name))
            assert (found.ecc_locations or {}).items() <= (whole.ecc_locations or {}).items()


def test_a_number_in_which_the_input_ends_is_not_believed() -> None:
    at = V100.index(": 54731746514") + len(": 5473")
    (frame,) = parse(V100[:at])
    (found,) = frame.ticks[0].gpus
    assert found.ecc_aggregate_corrected is None
    assert found.unread["ecc_aggregate_corrected"] == "the input ends in this value"


def test_a_looping_output_is_a_tick_a_time() -> None:
    one = HEAD.format(driver="525.105.17", count=1) + AMPERE.format(
        bus="27", reset="No", drain="No"
    )
    two = one.replace("04:05:06", "04:05:11").replace(": 300\n", ": 301\n")
    three = two.replace("==============NVSMI LOG==============", "").replace("04:05:11", "04:05:16")
    frames = parse(one + two + three)
    assert [
        (frame.seq, frame.ticks[0].at.second, frame.ticks[0].gpus[0].ecc_volatile_uncorrected)
        for frame in frames
    ] == [(1, 6, 302), (2, 11, 303), (3, 16, 303)]
    assert len({frame.id for frame in frames}) == 3
    assert [frame.id for frame in frames] == [frame.id for frame in parse(one + two + three)]


def test_times_are_in_the_zone_that_is_given_and_a_look_without_time_is_now() -> None:
    lines = V100.encode().splitlines(keepends=True)
    zone = timezone(timedelta(hours=2))
    (frame,) = parse_stream(lines, host=HOST, now=NOW, zone=zone)
    assert frame.ticks[0].at == datetime(2026, 3, 3, 2, 5, 6, tzinfo=UTC)
    (frame,) = parse(V100.replace("Tue Mar  3 04:05:06 2026", "Tue Foo 99 04:05:06 0001"))
    assert frame.ticks[0].at == NOW


def test_bytes_that_are_no_text_cost_only_their_line() -> None:
    lines = V100.encode().splitlines(keepends=True)
    lines.insert(12, b"\xff\xfe\x00 Persistence \x80: \xc3(\n")
    lines.insert(40, b"\x00" * 5000 + b"\n")
    (frame,) = parse_stream(lines, host=HOST, now=NOW)
    assert frame.ticks[0].gpus[0].ecc_aggregate_corrected == 54731746514


def test_no_number_of_cards_or_processes_takes_memory_without_end() -> None:
    head = HEAD.format(driver="525.105.17", count=1).encode().splitlines(keepends=True)
    many = [b"GPU %08X:27:00.0\n" % number for number in range(3000)]
    frames = list(parse_stream([*head, *many], host=HOST, now=NOW))
    assert [len(frame.ticks[0].gpus) for frame in frames] == [1024, 1024, 952]
    told = b"    Processes\n" + b"".join(
        b"        Process ID : %d\n" % number for number in range(9000)
    )
    lines = [*head, many[0], *told.splitlines(keepends=True)]
    (frame,) = parse_stream(lines, host=HOST, now=NOW)
    assert len(frame.ticks[0].gpus[0].processes or ()) == 4096


def test_an_error_of_the_input_is_raised_after_what_came_before_it() -> None:
    def broken() -> Iterator[bytes]:
        yield from V100.encode().splitlines(keepends=True)[:40]
        raise EOFError("cut")

    frames: list[GpuFrame] = []
    with pytest.raises(EOFError, match="cut"):
        frames.extend(parse_stream(broken(), host=HOST, now=NOW))
    assert [frame.ticks[0].gpus[0].name for frame in frames] == ["Tesla V100-SXM2-32GB"]


def test_the_text_is_recognised_and_others_are_not() -> None:
    assert recognise(V100.encode().splitlines(keepends=True)[:3])
    assert recognise([b"GPU 00000000:27:00.0\n"])
    assert not recognise(
        [
            b"[  811.120031] NVRM: Xid (PCI:0000:9a:00): 79, GPU has fallen off the bus.\n",
            b"GPU 3 is used by rank 3\n",
            b"date,job,node\n",
            b"name, value\n",
            b"index.html\n",
            b"    Timestamp : x\n",
            b"\x00\xff\n",
        ]
    )
