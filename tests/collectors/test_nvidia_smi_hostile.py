"""Outputs that are damaged at random: they raise nothing, and every frame can be shipped."""

from datetime import UTC, datetime

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.nvidia_smi import parse_stream, recognise
from evidence.records import GpuFrame

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)

WHOLE = b"""\
Unable to determine the device handle for GPU 0000:5E:00.0: GPU is lost.  Reboot the system
index, pci.bus_id, temperature.gpu, memory.used [MiB], ecc.errors.uncorrected.volatile.total
0, 00000000:1B:00.0, 40, 12 MiB, 3
1, 00000000:43:00.0, [GPU is lost], ERR!, [N/A]
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-7d3c0f11-aaaa-4bbb-8ccc-0123456789ab)
==============NVSMI LOG==============
Timestamp                           : Tue Mar  3 04:05:06 2026
Attached GPUs                       : 1
GPU 00000000:1A:00.0
    MIG Device
        GPU Instance ID             : 3
    ECC Errors
        Volatile
            SRAM Correctable        : 7
            DRAM Correctable        : 7
    Remapped Rows                   : N/A
    Processes
        Process ID                  : 70311
            Used GPU Memory         : 2048 MiB
Thu Jan  8 07:06:05 2026
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:1B:00.0 Off |                    2 |
| N/A   31C    P0              69W / 700W |   1024MiB / 81559MiB |     17%      Default |
|  2    5   0   0  |              12MiB / 19968MiB  | 14      0 |  1   0    1    0    0 |
|    0   N/A  N/A      7031      C   /opt/train/bin/python3 -m x              1014MiB |
<?xml version="1.0" ?>
<nvidia_smi_log>
<timestamp>Sun Feb  1 23:59:58 2026</timestamp>
<gpu id="00000000:3D:00.0"><fb_memory_usage><used>11 MiB</used></fb_memory_usage>
<mig_devices><mig_device><gpu_instance_id>1</gpu_instance_id></mig_device></mig_devices>
<processes><process_info><pid>1</pid></process_info></processes></gpu>
</nvidia_smi_log>
"""
_SPLICES = st.binary(max_size=12) | st.sampled_from(
    [b"9" * 40, b"0x" + b"F" * 16, b"GPU is lost", b"\n", b"|", b"<gpu>", b"&x;"]
)
_EDITS = st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 60), _SPLICES), max_size=12)


def parse(data: bytes) -> list[GpuFrame]:
    lines = data.splitlines(keepends=True)
    recognise(lines)
    return list(parse_stream(lines, host="n1", now=NOW))


def test_the_whole_is_read_as_five_outputs() -> None:
    assert [len(frame.ticks[0].gpus) for frame in parse(WHOLE)] == [3, 1, 1, 1, 1]


@settings(max_examples=300, deadline=None)
@given(_EDITS)
def test_no_damage_raises_and_what_is_told_fits_its_record(
    edits: list[tuple[int, int, bytes]],
) -> None:
    data = WHOLE
    for at, gone, put in edits:
        data = data[:at] + put + data[at + gone :]
    for frame in parse(data):
        sent = msgspec.json.encode(frame)
        assert msgspec.json.decode(sent, type=GpuFrame) == frame
        for gpu in frame.ticks[0].gpus:
            for name in gpu.__struct_fields__:
                value = getattr(gpu, name)
                assert not isinstance(value, int) or abs(value) < 1 << 63
