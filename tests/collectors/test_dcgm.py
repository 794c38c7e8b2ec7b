"""The dcgm-exporter source, against a real HTTP server that serves pages in its shape."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from collectors.collector import Unavailable
from collectors.gpu.dcgm import DcgmCollector
from collectors.gpu.dcgm_page import read_page
from evidence.records import (
    GpuEvent,
    GpuEventKind,
    GpuFrame,
    GpuSnapshot,
    GpuStatus,
    GpuTick,
    MigInstance,
)

START = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)
UUIDS = ("GPU-1c0ffee0-0000-4000-8000-000000000001", "GPU-1c0ffee0-0000-4000-8000-000000000002")
BUSES = ("00000000:1B:00.0", "00000000:43:00.0")


def sample(name: str, value: object, gpu: int = 0, more: str = "") -> str:
    return (
        f'DCGM_FI_DEV_{name}{{gpu="{gpu}",UUID="{UUIDS[gpu]}",pci_bus_id="{BUSES[gpu]}",'
        f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="dcgm-exporter-x7"'
        f'{more},DCGM_FI_DRIVER_VERSION="550.54.15"}} {value}\n'
    )


def page(energy: int = 1000, *, gpus: tuple[int, ...] = (0, 1), xid: int = 0) -> str:
    text = (
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
    )
    for gpu in gpus:
        text += sample("GPU_TEMP", 41 + gpu, gpu)
        text += sample("TOTAL_ENERGY_CONSUMPTION", energy, gpu)
        text += sample("XID_ERRORS", xid if gpu == 1 else 0, gpu)
    return text


# --- the page -----------------------------------------------------------------------------------


def test_readings_of_a_page_are_those_of_nvml() -> None:
    text = "".join(
        [
            sample("SM_CLOCK", 1980),
            sample("MEM_CLOCK", 2619),
            sample("MEMORY_TEMP", 71),
            sample("POWER_USAGE", "691.125000"),
            sample("PCIE_REPLAY_COUNTER", 3),
            sample("GPU_UTIL", 98),
            sample("FB_USED", 70123),
            sample("FB_FREE", 10000),
            sample("ECC_SBE_VOL_TOTAL", 4),
            sample("ECC_DBE_VOL_TOTAL", 2),
            sample("ECC_DBE_AGG_TOTAL", 54731746511),
            sample("ECC_DBE_VOL_SRM", 1),
            sample("RETIRED_SBE", 2),
            sample("RETIRED_DBE", 3),
            sample("RETIRED_PENDING", 1),
            sample("UNCORRECTABLE_REMAPPED_ROWS", 7),
            sample("CORRECTABLE_REMAPPED_ROWS", 0),
            sample("ROW_REMAP_FAILURE", 1),
            sample("ROW_REMAP_PENDING", 0),
            sample("BANKS_REMAP_ROWS_AVAIL_MAX", 2559),
            sample("THRESHOLD_SRM", 0),
            sample("CLOCKS_EVENT_REASONS", 132),
            sample("NVLINK_REPLAY_ERROR_COUNT_L3", 9),
            sample("NVLINK_CRC_FLIT_ERROR_COUNT_L4", 0),
            sample("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1),
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.5\n',
            'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="0",Hostname="x"} 44\n',
            "go_goroutines 12\n",
        ]
    )
    found = read_page(text)
    assert found.driver == "550.54.15"
    (gpu,) = found.gpus
    assert msgspec.structs.replace(gpu, unread={}) == GpuSnapshot(
        index=0,
        uuid=UUIDS[0],
        pci="0000:1b:00",
        name="NVIDIA H100 80GB HBM3",
        ecc_volatile_corrected=4,
        ecc_volatile_uncorrected=2,
        ecc_aggregate_uncorrected=54731746511,
        ecc_locations={"volatile_uncorrected_sram": 1},
        sram_threshold_exceeded=False,
        remapped_correctable=0,
        remapped_uncorrectable=7,
        remap_pending=False,
        remap_failure=True,
        remap_banks={"max": 2559},
        retired_pages=5,
        retired_pages_sbe=2,
        retired_pages_dbe=3,
        retired_pending=True,
        temperature_memory_c=71,
        power_w=691.125,
        utilization_pct=98,
        memory_used_mib=70123,
        clock_sm_mhz=1980,
        clock_memory_mhz=2619,
        clocks_event_reasons=132,
        pcie_replays=3,
        nvlink_errors={"3.replay": 9, "total.recovery": 1},
    )
    assert gpu.unread["temperature_c"] == gpu.unread["recovery_action"] == "not exported"
    assert gpu.unread["throttled_ns"] == "not exported"
    assert not gpu.unread.keys() & {"remap_failure", "ecc_locations", "nvlink_errors"}


def test_the_new_names_have_their_units() -> None:
    text = "".join(
        [
            sample("GPU_TEMP_CELSIUS", 55),
            sample("SM_CLOCK_HERTZ", 1980000000),
            sample("GPU_UTIL_RATIO", "0.97"),
            sample("FB_USED_BYTES", 70123 << 20),
            sample("FB_CAPACITY_BYTES", 81559 << 20),
            sample("GPU_ENERGY_JOULES_TOTAL", 1234),
            sample("ROW_REMAP_FAILED", 0),
            sample("BOARD_POWER_WATTS", "70.5"),
        ]
    )
    (gpu,) = read_page(text).gpus
    assert (gpu.temperature_c, gpu.clock_sm_mhz, gpu.utilization_pct) == (55, 1980, 97)
    assert (gpu.memory_used_mib, gpu.memory_total_mib) == (70123, 81559)
    assert (gpu.energy_mj, gpu.remap_failure, gpu.power_w) == (1234000, False, 70.5)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("9223372036854775792", "no value"),
        ("9223372036854775793", "not found"),
        ("9223372036854775794", "not supported"),
        ("9223372036854775795", "no permission"),
        ("9.223372036854776e+18", "no value"),
        ("2147483634", "not supported"),
        ("140737488355330", "not supported"),
        ("NaN", "no value"),
        ("+Inf", "no value"),
        ("many", "unreadable: 'many'"),
    ],
)
def test_what_dcgm_could_not_read_is_none_with_its_reason(value: str, why: str) -> None:
    (gpu,) = read_page(sample("ECC_DBE_VOL_TOTAL", value) + sample("GPU_TEMP", 40)).gpus
    assert gpu.ecc_volatile_uncorrected is None
    assert gpu.unread["ecc_volatile_uncorrected"] == why


def test_readings_of_a_mig_instance_are_not_the_cards() -> None:
    text = "".join(
        sample("GPU_TEMP", 44, more=labels) + sample("FB_USED", used, more=labels)
        for labels, used in (
            (',GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"', 18432),
            (',GPU_I_PROFILE="1g.10gb",GPU_I_ID="9"', 12),
        )
    )
    (gpu,) = read_page(text).gpus
    assert gpu.mig == (MigInstance(gi=2, profile="3g.40gb"), MigInstance(gi=9, profile="1g.10gb"))
    assert (gpu.temperature_c, gpu.memory_used_mib) == (44, None)
    assert gpu.unread["memory_used_mib"] == "exported by MIG instance only"


def test_lines_that_are_no_samples_are_passed_over() -> None:
    text = (
        'DCGM_FI_DEV_GPU_TEMP{gpu="0" 41\n'
        "DCGM_FI_DEV_GPU_TEMP 41\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="minus one",UUID="GPU-x"} 41\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-\\"q\\"\\\\"} 41 1700000000000\n'
        "\x00\ufffd\n"
    )
    (gpu,) = read_page(text).gpus
    assert (gpu.index, gpu.uuid, gpu.temperature_c) == (3, 'GPU-"q"\\', 41)


# --- the collector ------------------------------------------------------------------------------


class Exporter:
    """An HTTP server whose answer is what ``answer`` does with the request."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = self.serves(page())
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.answer(self)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"

    @staticmethod
    def serves(
        text: str | bytes, *, code: int = 200, length: int | None = None
    ) -> Callable[[BaseHTTPRequestHandler], None]:
        data = text if isinstance(text, bytes) else text.encode()

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(code)
            request.send_header("Content-Length", str(len(data) if length is None else length))
            request.end_headers()
            request.wfile.write(data)

        return answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.close()


def _half_a_chunk(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"%x\r\n" % 9999 + page().encode())


class Node:
    """A collector whose time this test moves; what it fetches comes when it comes."""

    def __init__(self, url: str, deadline_s: float = 5.0) -> None:
        self.now = 0.0
        self.collector = DcgmCollector(
            "gpu-b12",
            "boot-1",
            url,
            lambda: START + timedelta(seconds=self.now),
            interval_s=1.0,
            frame_ticks=3,
            deadline_s=deadline_s,
            monotonic=lambda: self.now,
        )

    def round(self, seconds: float = 1.0) -> list[GpuFrame]:
        """Let time pass, have one page fetched, and return the frames that it gave."""
        self.now += seconds
        frames = list(self.collector.read())
        ends = time.monotonic() + 20
        while self.collector._caller.busy:
            assert time.monotonic() < ends, "no answer"
            time.sleep(0.01)
            frames += self.collector.read()
        return frames

    @property
    def tick(self) -> GpuTick:
        assert self.collector.latest is not None
        return self.collector.latest


@pytest.fixture
def node(exporter: Exporter) -> Iterator[Node]:
    node = Node(exporter.url)
    yield node
    node.collector.close()


def test_a_page_is_a_tick_in_the_frame_of_the_node(node: Node) -> None:
    (frame,) = node.round()
    assert (frame.host, frame.boot_id, frame.source) == ("gpu-b12", "boot-1", "dcgm")
    assert frame.driver == node.collector.driver == "550.54.15"
    (tick,) = frame.ticks
    assert tick is node.tick
    assert tick.at == START + timedelta(seconds=1)
    assert [(gpu.index, gpu.pci, gpu.temperature_c) for gpu in tick.gpus] == [
        (0, "0000:1b:00", 41),
        (1, "0000:43:00", 42),
    ]
    assert tick.events == ()
    assert node.round() == []
    assert [len(one.ticks) for one in node.collector.rest()] == [1]


def test_an_exporter_that_never_answered_is_not_there() -> None:
    server = Exporter()
    url = server.url
    server.close()
    node = Node(url)
    with pytest.raises(Unavailable, match=r"dcgm-exporter at http.*refused"):
        node.round()
    assert node.collector.absent
    assert node.collector.latest is None
    node.collector.close()


def test_a_page_without_gpus_at_first_is_an_exporter_that_is_not_there(
    exporter: Exporter, node: Node
) -> None:
    exporter.answer = exporter.serves("go_goroutines 12\n")
    with pytest.raises(Unavailable, match="shows no GPU"):
        node.round()
    exporter.answer = exporter.serves(page())
    assert len(node.round(5)) == 1
    assert not node.collector.absent


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (Exporter.serves("oops", code=500), 999, "HTTP 500"),
        (Exporter.serves(page(), length=99999), 999, "the page broke off after"),
        (_half_a_chunk, 999, "IncompleteRead"),
        (Exporter.serves(page()[:-40]), 999, "the page broke off after"),
        (Exporter.serves("go_goroutines 12\n"), 21, "the page shows no GPU"),
        (Exporter.serves(""), 999, "the page broke off after 0 bytes"),
    ],
    ids=["500", "shorter than announced", "half a chunk", "half", "no GPU", "empty"],
)
def test_an_exporter_that_fails_after_it_has_answered_is_a_fact(
    exporter: Exporter,
    node: Node,
    answer: Callable[[BaseHTTPRequestHandler], None],
    code: int,
    words: str,
) -> None:
    node.round()
    exporter.answer = answer
    (frame,) = node.round()
    assert (node.tick.gpus, node.tick.error) == ((), code)
    assert words in (node.tick.error_text or "")
    assert exporter.url in (node.tick.error_text or "")
    assert frame.ticks[-1] is node.tick
    exporter.answer = exporter.serves(page(2000))
    assert node.round(0.5) == []  # it is asked again after a while, not at once
    node.round(3)
    assert (node.tick.error, len(node.tick.gpus)) == (None, 2)


def test_an_exporter_that_drips_is_given_up_at_the_deadline(exporter: Exporter) -> None:
    node = Node(exporter.url, deadline_s=2.0)
    node.round()
    ended = threading.Event()

    def drips(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(200):
            if ended.wait(0.05):
                return
            request.wfile.write(b"# HELP x\n")

    exporter.answer = drips
    node.round()
    ended.set()
    assert node.tick.error == 10
    assert "was not there after 2 s" in (node.tick.error_text or "")
    node.collector.close()


def test_read_returns_while_the_exporter_is_silent_and_the_silence_is_a_fact(
    exporter: Exporter,
) -> None:
    node = Node(exporter.url, deadline_s=30.0)
    node.round()
    asked, ended = threading.Event(), threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> None:
        asked.set()
        ended.wait(20)

    exporter.answer = silent
    node.now += 1
    assert list(node.collector.read()) == []
    assert asked.wait(10)
    node.now += 59
    assert list(node.collector.read()) == []
    assert node.collector._caller.busy
    node.now += 1.5
    (frame,) = node.collector.read()
    assert frame.ticks[-1].error == 10
    assert "no answer for 60 s" in (frame.ticks[-1].error_text or "")
    ended.set()
    node.collector.close()


def test_bytes_that_are_no_text_cost_only_their_line(exporter: Exporter, node: Node) -> None:
    exporter.answer = exporter.serves(b"\xff\xfe\x00{}\n" + page().encode() + b"\xc3(\n")
    node.round()
    assert [gpu.temperature_c for gpu in node.tick.gpus] == [41, 42]


def test_a_card_that_left_the_page_is_named_until_it_is_back(
    exporter: Exporter, node: Node
) -> None:
    node.round()
    exporter.answer = exporter.serves(page(2000, gpus=(0,)))
    for energy in (2000, 3000):
        exporter.answer = exporter.serves(page(energy, gpus=(0,)))
        node.round()
        well, gone = node.tick.gpus
        assert well.status is GpuStatus.OK
        assert gone == GpuSnapshot(
            index=1,
            uuid=UUIDS[1],
            pci="0000:43:00",
            name="NVIDIA H100 80GB HBM3",
            status=GpuStatus.ERROR,
            unread={"status": "not exported any more"},
        )
    exporter.answer = exporter.serves(page(4000))
    node.round()
    assert [gpu.status for gpu in node.tick.gpus] == [GpuStatus.OK, GpuStatus.OK]
    swapped = page(5000).replace(UUIDS[1], "GPU-other")
    exporter.answer = exporter.serves(swapped)
    node.round()
    assert [gpu.uuid for gpu in node.tick.gpus] == [UUIDS[0], "GPU-other"]


def test_an_xid_is_an_event_when_it_changes_and_what_was_there_before_is_none(
    exporter: Exporter, node: Node
) -> None:
    exporter.answer = exporter.serves(page(1, xid=31))
    node.round()
    assert node.tick.events == ()
    told = []
    for energy, xid in enumerate((31, 79, 79, 0, 48), 2):
        exporter.answer = exporter.serves(page(energy, xid=xid))
        frames = node.round()
        told.append([event.data for event in node.tick.events])
        if node.tick.events:
            assert frames[-1].ticks[-1] is node.tick  # at once
            assert node.tick.events == (
                GpuEvent(
                    at=node.tick.at,
                    kind=GpuEventKind.XID,
                    index=1,
                    uuid=UUIDS[1],
                    pci="0000:43:00",
                    data=xid,
                ),
            )
    assert told == [[], [79], [], [], [48]]


def test_a_sample_that_repeats_itself_for_two_minutes_is_stale(
    exporter: Exporter, node: Node
) -> None:
    node.round()
    node.round(119)
    assert node.tick.error is None
    node.round(2)
    assert node.tick.error == 21
    assert "repeated the same sample for 121 s" in (node.tick.error_text or "")
    exporter.answer = exporter.serves(page(2000))
    node.round(10)
    assert node.tick.error is None
    still = sample("GPU_TEMP", 40)
    exporter.answer = exporter.serves(still)
    node.round()
    node.round(500)
    assert node.tick.error is None  # temperatures may stand still


def test_the_environments_proxy_is_not_asked(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    node = Node(exporter.url)
    node.round()
    assert len(node.tick.gpus) == 2
    node.collector.close()


@pytest.mark.parametrize("url", ["", "file:///etc/hostname", "127.0.0.1:9400", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the address of a dcgm-exporter"):
        DcgmCollector("n1", None, url, lambda: START)
