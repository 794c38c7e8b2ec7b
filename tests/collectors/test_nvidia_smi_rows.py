"""What nvidia-smi prints as rows: CSV, the table, the list, and its messages."""

from datetime import UTC, datetime
from io import BytesIO

import pytest

from collectors.nvidia_smi import parse_stream, recognise
from evidence.records import GpuFrame, GpuProcess, GpuSnapshot, GpuStatus, GpuTick, MigInstance

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)


def parse(text: str, host: str | None = "n1") -> list[GpuFrame]:
    return list(parse_stream(text.encode().splitlines(keepends=True), host=host, now=NOW))


def tick(text: str) -> GpuTick:
    (frame,) = parse(text)
    return frame.ticks[0]


# --- CSV ----------------------------------------------------------------------------------------

CSV = (
    "timestamp, hostname, driver_version, count, index, name, uuid, pci.bus_id, pstate, "
    "clocks_event_reasons.active, clocks_event_reasons_counters.sw_power_cap [us], "
    "memory.used [MiB], utilization.gpu [%], ecc.mode.current, "
    "ecc.errors.corrected.volatile.device_memory, ecc.errors.corrected.volatile.dram, "
    "ecc.errors.corrected.volatile.l1_cache, ecc.errors.corrected.volatile.total, "
    "ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.sram.parity, "
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded, "
    "ecc.errors.uncorrected.aggregate.sram.l2, retired_pages.pending, "
    "remapped_rows.uncorrectable, remapped_rows.pending, remapped_rows.failure, "
    "remapped_rows.histogram.low, temperature.gpu, temperature.gpu.tlimit, power.draw [W], "
    "enforced.power.limit [W], power.limit [W], gpu_recovery_action\n"
)
ROW = (
    "2026/03/01 10:00:00.125, gpu-a09, 590.48.01, 2, 0, NVIDIA B200, "
    "GPU-0aa1b2c3-1111-2222-3333-444455556666, 00000000:1B:00.0, P0, 0x0000000000000084, 250 us, "
    "12 MiB, 99 %, Enabled, 3, 3, [N/A], 3, 0, 2, Yes, 2, [N/A], 1, Yes, No, 4, 66, 18, "
    "997.25 W, 1000.00 W, 1000.00 W, Reset\n"
)
LOST = (
    "2026/03/01 10:00:00.131, [GPU is lost], 590.48.01, 2, 1, [GPU is lost], "
    "GPU-0aa1b2c3-1111-2222-3333-444455557777, 00000000:43:00.0"
    + ", [GPU is lost]" * 24
    + ", [Unknown Error]\n"
)


def test_a_row_is_a_snapshot_and_its_host_column_the_host() -> None:
    (frame,) = parse(CSV + ROW)
    assert (frame.host, frame.driver) == ("gpu-a09", "590.48.01")
    assert frame.ticks == (
        GpuTick(
            at=datetime(2026, 3, 1, 10, 0, 0, 125000, tzinfo=UTC),
            gpus=(
                GpuSnapshot(
                    index=0,
                    uuid="GPU-0aa1b2c3-1111-2222-3333-444455556666",
                    pci="0000:1b:00",
                    name="NVIDIA B200",
                    unread={"retired_pending": "N/A"},
                    ecc_enabled=True,
                    ecc_volatile_corrected=3,
                    ecc_volatile_uncorrected=0,
                    ecc_locations={"volatile_corrected_dram": 3},
                    sram_threshold_exceeded=True,
                    sram_aggregate_parity=2,
                    sram_sources={"l2": 2},
                    remapped_uncorrectable=1,
                    remap_pending=True,
                    remap_failure=False,
                    remap_banks={"low": 4},
                    recovery_action=1,
                    temperature_c=66,
                    temperature_margin_c=18,
                    power_w=997.25,
                    power_limit_w=1000.0,
                    utilization_pct=99,
                    memory_used_mib=12,
                    clocks_event_reasons=0x84,
                    throttled_ns={"power_cap": 250_000},
                    performance_state=0,
                ),
            ),
        ),
    )


def test_without_units_the_values_are_the_same() -> None:
    bare = (CSV + ROW).replace(" [us]", "").replace(" [MiB]", "").replace(" [W]", "")
    bare = bare.replace(" [%]", "").replace("250 us", "250").replace("12 MiB", "12")
    bare = bare.replace("99 %", "99").replace(" W,", ",")
    assert tick(bare) == tick(CSV + ROW)


def test_a_lost_card_among_the_rows_is_lost_and_none_of_its_values_is_zero() -> None:
    well, lost = tick(CSV + ROW + LOST).gpus
    assert well.status is GpuStatus.OK
    assert (lost.index, lost.pci, lost.status, lost.error) == (
        1,
        "0000:43:00",
        GpuStatus.LOST,
        15,
    )
    assert lost.name is None
    assert lost.temperature_c is None
    assert lost.unread["ecc_volatile_uncorrected"] == "GPU is lost"
    assert lost.unread["recovery_action"] == "Unknown Error"


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("[N/A]", GpuStatus.OK),
        ("[Not Supported]", GpuStatus.OK),
        ("[Insufficient Permissions]", GpuStatus.OK),
        ("[Requested functionality has been deprecated]", GpuStatus.OK),
        ("[Unknown Error]", GpuStatus.ERROR),
        ("ERR!", GpuStatus.ERROR),
        ("[GPU is lost]", GpuStatus.LOST),
        ("[GPU requires reset]", GpuStatus.RESET_REQUIRED),
        ("N/A", GpuStatus.OK),
    ],
)
def test_a_cell_that_is_no_number_is_none_with_its_reason(cell: str, status: GpuStatus) -> None:
    text = f"index, temperature.gpu, ecc.errors.uncorrected.volatile.total\n3, {cell}, {cell}\n"
    (found,) = tick(text).gpus
    why = cell.strip("[]")
    assert (found.index, found.status) == (3, status)
    assert (found.temperature_c, found.ecc_volatile_uncorrected) == (None, None)
    assert found.unread == {"temperature_c": why, "ecc_volatile_uncorrected": why}


def test_a_looping_query_is_a_tick_a_round_though_each_row_has_its_own_time() -> None:
    head = "timestamp, index, temperature.gpu\n"
    rows = "".join(
        f"2026/03/01 10:00:{second:02d}.{index}00, {index}, {40 + second}\n"
        for second in range(3)
        for index in range(4)
        if (second, index) != (1, 0)
    )
    ticks = [frame.ticks[0] for frame in parse(head + rows)]
    assert [(one.at.second, one.at.microsecond) for one in ticks] == [
        (0, 0),
        (1, 100000),
        (2, 0),
    ]
    assert [[gpu.index for gpu in one.gpus] for one in ticks] == [
        [0, 1, 2, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
    ]


def test_a_card_lost_in_the_middle_of_a_loop_is_lost_from_there_on() -> None:
    head = "timestamp, index, pci.bus_id, temperature.gpu\n"
    first = "2026/03/01 10:00:00.000, 0, 00000000:1B:00.0, 50\n"
    message = (
        "Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n"
    )
    frames = parse(head + first + message)
    told = [(one.ticks[0].at, one.ticks[0].gpus[0].status) for one in frames]
    at = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert told == [(at, GpuStatus.OK), (at, GpuStatus.LOST)]


def test_a_row_in_which_the_input_ends_keeps_its_whole_cells() -> None:
    text = "index, temperature.gpu, remapped_rows.uncorrectable, pstate\n0, 50, 0, P0\n1, 51, 12"
    _, cut = tick(text).gpus
    assert (cut.index, cut.temperature_c, cut.remapped_uncorrectable) == (1, 51, None)
    assert cut.unread == dict.fromkeys(
        ("remapped_uncorrectable", "performance_state"), "the input ends in this cell"
    )


def test_rows_of_other_queries_and_other_tables_are_no_gpus() -> None:
    assert parse("timestamp, gpu_name, gpu_uuid, pid, used_gpu_memory [MiB]\na, b, c, 1, 2\n") == []
    text = (
        "timestamp, gpu_name, gpu_bus_id, gpu_serial, gpu_uuid, retired_pages.address, "
        "retired_pages.cause\n"
        "2026/03/01 10:00:00.000, Tesla, 00000000:1B:00.0, 1, GPU-1, 0x0, Double Bit ECC\n"
    )
    assert parse(text) == []
    assert parse("temperature.gpu\n\nhello\n") == []
    assert not recognise([b"name,value\n", b"index,count\n", b"job.id, job.name\n"])
    assert recognise([b"index, temperature.gpu\n"])


def test_the_last_header_counts() -> None:
    text = "index, temperature.gpu\n0, 50\nindex, pcie.link.width.current\n0, 8\n"
    first, second = (frame.ticks[0].gpus[0] for frame in parse(text))
    assert (first.temperature_c, first.pcie_width) == (50, None)
    assert (second.temperature_c, second.pcie_width) == (None, 8)


def test_a_file_is_read_as_lines_are_and_a_line_without_end_is_cut() -> None:
    (frame,) = parse_stream(BytesIO((CSV + ROW).encode()), host="n1", now=NOW)
    assert frame.ticks[0] == tick(CSV + ROW)
    endless = CSV.encode() + b"x" * (3 << 20) + b"\n" + ROW.encode()
    (frame,) = parse_stream(BytesIO(endless), host="n1", now=NOW)
    assert frame.ticks[0] == tick(CSV + ROW)


# --- the table ----------------------------------------------------------------------------------

TABLE = """\
Thu Jan  8 07:06:05 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:1B:00.0 Off |                    2 |
| N/A   31C    P0              69W / 700W |   1024MiB / 81559MiB |     17%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
|   1  ERR!                           On  | 00000000:43:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             ERR! / ERR!  |      3MiB / 81559MiB |    ERR!      Default |
|                                         |                      |                 ERR! |
+-----------------------------------------+----------------------+----------------------+
|   2  NVIDIA H100 80GB HBM3          On  | 00000000:52:00.0 Off |                   On |
| N/A   33C    P0             101W / 700W |                  N/A |     N/A      Default |
|                                         |                      |              Enabled |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| MIG devices:                                                                          |
+------------------+--------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                   Memory-Usage |        Vol|      Shared           |
|==================+================================+===========+=======================|
|  2    5   0   0  |              12MiB / 19968MiB  | 14      0 |  1   0    1    0    0 |
|                  |               0MiB / 32767MiB  |           |                       |
+------------------+--------------------------------+-----------+-----------------------+

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|=======================================================================================|
|    0   N/A  N/A      7031      C   /opt/train/bin/python3 -m x              1014MiB |
|    2     5    0      7099      C   python                                      9MiB |
+---------------------------------------------------------------------------------------+
"""


def test_the_table_tells_what_it_shows() -> None:
    (frame,) = parse(TABLE)
    assert frame.driver == "535.129.03"
    well, failing, split = frame.ticks[0].gpus
    assert frame.ticks[0].at == datetime(2026, 1, 8, 7, 6, 5, tzinfo=UTC)
    assert well == GpuSnapshot(
        index=0,
        pci="0000:1b:00",
        name="NVIDIA H100 80GB HBM3",
        ecc_volatile_uncorrected=2,
        temperature_c=31,
        power_w=69.0,
        power_limit_w=700.0,
        utilization_pct=17,
        memory_used_mib=1024,
        memory_total_mib=81559,
        persistence_mode=True,
        performance_state=0,
        mig_enabled=False,
        processes=(GpuProcess(pid=7031, name="/opt/train/bin/python3 -m x", memory_used_mib=1014),),
    )
    assert (failing.index, failing.pci, failing.status) == (1, "0000:43:00", GpuStatus.ERROR)
    assert (failing.memory_used_mib, failing.temperature_c, failing.name) == (3, None, None)
    assert failing.unread["temperature_c"] == failing.unread["ecc_volatile_uncorrected"] == "ERR!"
    assert (split.index, split.mig_enabled, split.mig) == (2, True, (MigInstance(gi=5, ci=0),))
    assert split.unread["ecc_volatile_uncorrected"] == "hidden by MIG"
    assert split.processes == (GpuProcess(pid=7099, name="python", memory_used_mib=9, gi=5, ci=0),)


OLD_TABLE = """\
Mon Apr  6 01:02:03 2020
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 440.64.00    Driver Version: 440.64.00    CUDA Version: 10.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:1A:00.0 Off |                    3 |
| N/A   61C    P0   291W / 300W |     11MiB / 32510MiB |     97%      Default |
+-------------------------------+----------------------+----------------------+
|   1  GeForce GTX 1070    Off  | 00000000:3B:00.0  On |                  N/A |
| 38%   49C    P8    11W / 151W |    561MiB /  8119MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0     70311      C   python3                                     2048MiB |
|    1      1860      G   /usr/lib/xorg/Xorg                           343MiB |
+-----------------------------------------------------------------------------+
"""


def test_the_table_of_440_is_read_too() -> None:
    (frame,) = parse(OLD_TABLE)
    assert frame.driver == "440.64.00"
    assert frame.ticks[0] == GpuTick(
        at=datetime(2020, 4, 6, 1, 2, 3, tzinfo=UTC),
        gpus=(
            GpuSnapshot(
                index=0,
                pci="0000:1a:00",
                name="Tesla V100-SXM2...",
                ecc_volatile_uncorrected=3,
                temperature_c=61,
                power_w=291.0,
                power_limit_w=300.0,
                utilization_pct=97,
                memory_used_mib=11,
                memory_total_mib=32510,
                persistence_mode=True,
                performance_state=0,
                processes=(GpuProcess(pid=70311, name="python3", memory_used_mib=2048),),
            ),
            GpuSnapshot(
                index=1,
                pci="0000:3b:00",
                name="GeForce GTX 1070",
                unread={"ecc_volatile_uncorrected": "N/A"},
                temperature_c=49,
                power_w=11.0,
                power_limit_w=151.0,
                utilization_pct=0,
                memory_used_mib=561,
                memory_total_mib=8119,
                persistence_mode=False,
                performance_state=8,
                processes=(GpuProcess(pid=1860, name="/usr/lib/xorg/Xorg", memory_used_mib=343),),
            ),
        ),
    )


def test_a_looping_table_is_a_tick_a_time_with_or_without_its_head() -> None:
    again = TABLE.replace("07:06:05", "07:06:10")
    assert [frame.ticks[0].at.second for frame in parse(TABLE + again)] == [5, 10]
    rows = "".join(line for line in TABLE.splitlines(keepends=True) if "0000:1B" in line)
    assert len(parse(rows + rows)) == 2


# --- the list -----------------------------------------------------------------------------------

LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-7d3c0f11-aaaa-4bbb-8ccc-0123456789ab)
  MIG 3g.20gb     Device  0: (UUID: MIG-2e9d1c55-0000-5111-8222-0123456789ab)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-7d3c0f11-aaaa-4bbb-8ccc-0123456789ac)
"""


def test_a_listed_card_has_a_name_and_no_health() -> None:
    first, second = tick(LIST).gpus
    assert first == GpuSnapshot(
        index=0,
        uuid="GPU-7d3c0f11-aaaa-4bbb-8ccc-0123456789ab",
        name="NVIDIA A100-SXM4-40GB",
        unread={"status": "not in a listing"},
    )
    assert second.index == 1


def test_a_list_names_the_card_of_a_message_and_does_not_make_it_well() -> None:
    text = "Unable to determine the device handle for GPU1: Unknown Error\n" + LIST
    lost, well = tick(text).gpus
    assert (lost.index, lost.uuid, lost.status, lost.error) == (
        1,
        "GPU-7d3c0f11-aaaa-4bbb-8ccc-0123456789ac",
        GpuStatus.ERROR,
        999,
    )
    assert well.unread == {"status": "not in a listing"}


# --- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "index", "pci", "status", "error"),
    [
        (
            "Unable to determine the device handle for GPU 0000:5E:00.0: GPU is lost.  Reboot the "
            "system to recover this GPU",
            -1,
            "0000:5e:00",
            GpuStatus.LOST,
            15,
        ),
        (
            "Unable to determine the device handle for gpu 0000:5E:00.0: Unknown Error",
            -1,
            "0000:5e:00",
            GpuStatus.ERROR,
            999,
        ),
        (
            "Unable to determine the device handle for GPU0000:DB:00.0: Unknown Error",
            -1,
            "0000:db:00",
            GpuStatus.ERROR,
            999,
        ),
        (
            "Unable to determine the device handle for GPU3: 0000:DB:00.0: GPU requires reset",
            3,
            "0000:db:00",
            GpuStatus.RESET_REQUIRED,
            16,
        ),
        (
            "Unable to determine the device handle for GPU7: No Way To Tell",
            7,
            None,
            GpuStatus.ERROR,
            None,
        ),
        (
            "error getting device handle for index '5': Unknown Error",
            5,
            None,
            GpuStatus.ERROR,
            999,
        ),
        (
            "WARNING: infoROM is corrupted at gpu 0000:DB:00.0",
            -1,
            "0000:db:00",
            GpuStatus.ERROR,
            14,
        ),
    ],
)
def test_a_message_about_a_card_is_a_snapshot_of_it(
    line: str, index: int, pci: str | None, status: GpuStatus, error: int | None
) -> None:
    assert recognise([line.encode()])
    (found,) = tick(line + "\n").gpus
    assert (found.index, found.pci, found.status, found.error) == (index, pci, status, error)
    assert found.unread


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("Failed to initialize NVML: Unknown Error", 999, "Unknown Error"),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            18,
            "Driver/library version mismatch",
        ),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "Insufficient Permissions"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure that the latest NVIDIA driver is installed and running.",
            9,
            "it couldn't communicate with the NVIDIA driver",
        ),
        ("No devices were found", 6, "No devices were found"),
    ],
)
def test_a_message_about_nvml_itself_is_a_tick_without_cards(
    line: str, code: int, words: str
) -> None:
    assert tick(line + "\n") == GpuTick(at=NOW, error=code, error_text=words)


def test_messages_before_a_table_belong_to_it() -> None:
    lost = "Unable to determine the device handle for GPU 0000:9A:00.0: GPU is lost. Reboot it\n"
    worn = "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
    for text in (lost + worn + TABLE, TABLE + lost + worn):
        found = {gpu.pci: gpu for gpu in tick(text).gpus}
        assert found["0000:9a:00"].status is GpuStatus.LOST
        assert found["0000:1b:00"].status is GpuStatus.OK
        assert found["0000:1b:00"].unread == {"inforom": "infoROM is corrupted"}
        assert len(found) == 4


def test_every_output_after_another_in_one_file_is_read() -> None:
    text = "# $ nvidia-smi\n" + TABLE + "\n# $ nvidia-smi --query-gpu=...\n" + CSV + ROW
    text += "\n" + LIST + "No devices were found\n"
    table, rows, listed, none = (frame.ticks[0] for frame in parse(text))
    assert [len(one.gpus) for one in (table, rows, listed, none)] == [3, 1, 2, 0]
    assert none.error == 6
    # What has no time of its own came after what has.
    assert table.at < rows.at == listed.at == none.at
