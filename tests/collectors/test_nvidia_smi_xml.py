"""`nvidia-smi -q -x`: DTD v10 to v13, and documents that are hostile or cut."""

import tracemalloc
from datetime import UTC, datetime

import pytest

from collectors.nvidia_smi import parse_stream, recognise
from evidence.records import GpuFrame, GpuProcess, GpuSnapshot, GpuStatus, MigInstance

NOW = datetime(2026, 3, 9, 12, 0, tzinfo=UTC)


def parse(text: str) -> list[GpuFrame]:
    return list(parse_stream(text.encode().splitlines(keepends=True), host="n1", now=NOW))


def card(text: str) -> GpuSnapshot:
    (frame,) = parse(text)
    (found,) = frame.ticks[0].gpus
    return found


def document(version: int, inside: str, *, attached: int = 1, driver: str = "535.54.03") -> str:
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{version}.dtd">
<nvidia_smi_log>
\t<timestamp>Sun Feb  1 23:59:58 2026</timestamp>
\t<driver_version>{driver}</driver_version>
\t<attached_gpus>{attached}</attached_gpus>
{inside}
</nvidia_smi_log>
"""


V10 = document(
    10,
    """
\t<gpu id="00000000:3D:00.0">
\t\t<product_name>Tesla V100-SXM2-16GB</product_name>
\t\t<uuid>GPU-91f0c5f6-0f0e-4d5e-9e6b-7a9b0c1d2e3f</uuid>
\t\t<clocks_throttle_reasons>
\t\t\t<clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
\t\t\t<clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
\t\t\t<clocks_throttle_reason_sw_thermal_slowdown>Active</clocks_throttle_reason_sw_thermal_slowdown>
\t\t</clocks_throttle_reasons>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<single_bit><device_memory>4</device_memory><total>4</total></single_bit>
\t\t\t\t<double_bit><device_memory>1</device_memory><texture_shm>N/A</texture_shm><total>1</total></double_bit>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<single_bit><register_file>2</register_file><total>9</total></single_bit>
\t\t\t\t<double_bit><total>N/A</total></double_bit>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<retired_pages>
\t\t\t<multiple_single_bit_retirement><retired_count>3</retired_count></multiple_single_bit_retirement>
\t\t\t<double_bit_retirement><retired_count>1</retired_count></double_bit_retirement>
\t\t\t<pending_retirement>Yes</pending_retirement>
\t\t</retired_pages>
\t\t<temperature>
\t\t\t<gpu_temp>49 C</gpu_temp>
\t\t\t<gpu_temp_max_threshold>90 C</gpu_temp_max_threshold>
\t\t</temperature>
\t\t<power_readings>
\t\t\t<power_draw>41.40 W</power_draw>
\t\t\t<power_limit>310.00 W</power_limit>
\t\t\t<enforced_power_limit>300.00 W</enforced_power_limit>
\t\t</power_readings>
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<pid>1860</pid>
\t\t\t\t<process_name>python3 &lt;train&gt;</process_name>
\t\t\t\t<used_memory>343 MiB</used_memory>
\t\t\t</process_info>
\t\t</processes>
\t</gpu>""",
    driver="418.87.00",
)


def test_single_and_double_bits_of_v10_are_read() -> None:
    (frame,) = parse(V10)
    assert (frame.driver, frame.ticks[0].at) == (
        "418.87.00",
        datetime(2026, 2, 1, 23, 59, 58, tzinfo=UTC),
    )
    assert frame.ticks[0].gpus == (
        GpuSnapshot(
            index=0,
            uuid="GPU-91f0c5f6-0f0e-4d5e-9e6b-7a9b0c1d2e3f",
            pci="0000:3d:00",
            name="Tesla V100-SXM2-16GB",
            unread={"ecc_aggregate_uncorrected": "N/A"},
            ecc_volatile_corrected=4,
            ecc_volatile_uncorrected=1,
            ecc_aggregate_corrected=9,
            ecc_locations={
                "volatile_corrected_dram": 4,
                "volatile_uncorrected_dram": 1,
                "aggregate_corrected_register_file": 2,
            },
            retired_pages=4,
            retired_pages_sbe=3,
            retired_pages_dbe=1,
            retired_pending=True,
            temperature_c=49,
            temperature_shutdown_c=90,
            power_w=41.4,
            power_limit_w=300.0,
            clocks_event_reasons=0x21,
            processes=(GpuProcess(pid=1860, name="python3 <train>", memory_used_mib=343),),
        ),
    )


V13 = document(
    13,
    """
    <gpu id="00000008:01:00.0">
        <mig_mode><current_mig>Disabled</current_mig></mig_mode>
        <mig_devices>None</mig_devices>
        <gpu_recovery_action>Drain and Reset</gpu_recovery_action>
        <pci>
            <pci_gpu_link_info>
                <pcie_gen><max_link_gen>6</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
                <link_widths>
                    <max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
                </link_widths>
            </pci_gpu_link_info>
            <replay_counter>77</replay_counter>
        </pci>
        <clocks_event_reasons_counters>
            <clocks_event_reasons_counters_sw_power_cap>
                500 us
            </clocks_event_reasons_counters_sw_power_cap>
            <clocks_event_reasons_counters_hw_power_brake>
                3 us
            </clocks_event_reasons_counters_hw_power_brake>
        </clocks_event_reasons_counters>
        <ecc_errors>
            <volatile>
                <sram_correctable>1</sram_correctable>
                <sram_uncorrectable_parity>2</sram_uncorrectable_parity>
                <sram_uncorrectable_secded>3</sram_uncorrectable_secded>
                <dram_correctable>4</dram_correctable>
                <dram_uncorrectable>5</dram_uncorrectable>
            </volatile>
            <aggregate>
                <sram_threshold_exceeded>Yes</sram_threshold_exceeded>
            </aggregate>
            <aggregate_uncorrectable_sram_sources>
                <sram_l2>9</sram_l2><sram_microcontroller>8</sram_microcontroller>
            </aggregate_uncorrectable_sram_sources>
            <channel_repair_pending>No</channel_repair_pending>
            <tpc_repair_pending>Yes</tpc_repair_pending>
        </ecc_errors>
        <remapped_rows>
            <remapped_row_corr>1</remapped_row_corr>
            <remapped_row_unc>2</remapped_row_unc>
            <remapped_row_corr_inactive>3</remapped_row_corr_inactive>
            <remapped_row_unc_inactive>4</remapped_row_unc_inactive>
            <remapped_row_pending>Yes</remapped_row_pending>
            <remapped_row_failure>No</remapped_row_failure>
            <row_remapper_histogram>
                <row_remapper_histogram_max>5756 bank(s)</row_remapper_histogram_max>
                <row_remapper_histogram_none>4 bank(s)</row_remapper_histogram_none>
            </row_remapper_histogram>
        </remapped_rows>
        <temperature>
            <gpu_temp_tlimit>12 C</gpu_temp_tlimit>
            <gpu_temp_max_tlimit_threshold>-5 C</gpu_temp_max_tlimit_threshold>
        </temperature>
        <gpu_power_readings>
            <average_power_draw>1012.50 W</average_power_draw>
            <instant_power_draw>1100.00 W</instant_power_draw>
            <current_power_limit>1200.00 W</current_power_limit>
        </gpu_power_readings>
        <module_power_readings>
            <average_power_draw>1.00 W</average_power_draw>
        </module_power_readings>
        <fabric><state>Completed</state><status>Success</status><cliqueId>32766</cliqueId></fabric>
        <processes></processes>
    </gpu>""",
    driver="590.48.01",
)


def test_protection_inactive_remaps_and_margins_of_v13_are_read() -> None:
    assert card(V13) == GpuSnapshot(
        index=0,
        pci="0008:01:00",
        ecc_volatile_corrected=5,
        ecc_volatile_uncorrected=10,
        ecc_locations={
            "volatile_corrected_sram": 1,
            "volatile_corrected_dram": 4,
            "volatile_uncorrected_dram": 5,
        },
        sram_threshold_exceeded=True,
        sram_volatile_parity=2,
        sram_volatile_secded=3,
        sram_sources={"l2": 9, "mcu": 8},
        remapped_correctable=1,
        remapped_uncorrectable=2,
        remap_pending=True,
        remap_failure=False,
        remapped_correctable_inactive=3,
        remapped_uncorrectable_inactive=4,
        remap_banks={"max": 5756, "none": 4},
        channel_repair_pending=False,
        tpc_repair_pending=True,
        recovery_action=4,
        temperature_margin_c=12,
        temperature_margin_shutdown=-5,
        power_w=1012.5,
        power_limit_w=1200.0,
        throttled_ns={"power_cap": 500_000, "power_brake": 3000},
        pcie_replays=77,
        pcie_width=8,
        pcie_width_max=16,
        pcie_generation=4,
        pcie_generation_max=6,
        fabric_state="completed",
        fabric_status=0,
        fabric_clique=32766,
        mig_enabled=False,
        processes=(),
    )


def test_instances_of_v12_are_their_own_and_a_section_that_is_na_has_that_reason() -> None:
    inside = """
    <gpu id="00000000:C1:00.0">
        <mig_devices>
            <mig_device>
                <index>0</index><gpu_instance_id>7</gpu_instance_id>
                <compute_instance_id>1</compute_instance_id>
                <ecc_error_count><volatile_count>
                    <sram_uncorrectable>6</sram_uncorrectable>
                </volatile_count></ecc_error_count>
                <fb_memory_usage><used>12 MiB</used></fb_memory_usage>
            </mig_device>
        </mig_devices>
        <remapped_rows>N/A</remapped_rows>
        <processes>N/A</processes>
    </gpu>"""
    found = card(document(12, inside, attached=4))
    assert found.mig == (MigInstance(gi=7, ci=1),)
    assert (found.memory_used_mib, found.ecc_volatile_uncorrected) == (None, None)
    assert found.index == -1
    assert found.processes is None
    assert found.unread["remap_failure"] == found.unread["remapped_uncorrectable"] == "N/A"


def test_a_lost_card_of_v11_is_lost() -> None:
    inside = """
    <gpu id="00000000:C1:00.0">
        <uuid>GPU is lost</uuid>
        <temperature><gpu_temp>GPU is lost</gpu_temp></temperature>
    </gpu>"""
    found = card(document(11, inside))
    assert (found.pci, found.status, found.error) == ("0000:c1:00", GpuStatus.LOST, 15)
    assert found.temperature_c is None


BOMB = """<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [
<!ENTITY a "GPU">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c SYSTEM "file:///etc/hostname">
]>
<nvidia_smi_log>
<gpu id="00000000:C1:00.0"><product_name>&b;&c;</product_name></gpu>
</nvidia_smi_log>
"""


def test_a_document_that_declares_entities_is_refused_and_the_next_one_read() -> None:
    assert parse(BOMB) == []
    (frame,) = parse(BOMB + V13)
    assert frame.ticks[0].gpus[0].pci == "0008:01:00"


def test_nothing_outside_the_document_is_fetched() -> None:
    text = V13.replace("nvsmi_device_v13.dtd", "http://127.0.0.1:9/x.dtd").replace(
        "<state>Completed</state>", "<state>&undeclared;</state>"
    )
    (frame,) = parse(text)
    assert frame.ticks[0].gpus[0].fabric_state in (None, "")
    assert frame.ticks[0].gpus[0].remapped_uncorrectable == 2


@pytest.mark.parametrize("kept", range(0, len(V13), 211))
def test_a_document_that_is_cut_tells_what_came_before(kept: int) -> None:
    whole = card(V13)
    for frame in parse(V13[:kept]):
        for found in frame.ticks[0].gpus:
            for name in ("remapped_uncorrectable", "pcie_replays", "power_w", "recovery_action"):
                assert getattr(found, name) in (None, getattr(whole, name))
    (again, *_) = reversed(parse(V13[:kept] + "\n" + V13))
    assert again.ticks[0].gpus[0].remapped_uncorrectable == 2


def test_documents_one_after_the_other_are_a_tick_each_and_one_line_is_enough() -> None:
    later = V13.replace("23:59:58", "23:59:59")
    assert [frame.ticks[0].at.second for frame in parse(V13 + later)] == [58, 59]
    (frame,) = parse(" ".join(V10.split("\n")))
    assert frame.ticks[0].gpus[0].ecc_volatile_corrected == 4


def test_a_huge_document_is_read_in_bounded_memory() -> None:
    clocks = "<supported_graphics_clock>1410 MHz</supported_graphics_clock>\n" * 200_000
    text = V13.replace("<processes>", f"<supported_clocks>{clocks}</supported_clocks><processes>")
    lines = text.encode().splitlines(keepends=True)
    tracemalloc.start()
    try:
        (frame,) = parse_stream(lines, host="n1", now=NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert frame.ticks[0].gpus[0].fabric_clique == 32766
    assert peak < 4 << 20


def test_the_document_is_recognised() -> None:
    assert recognise(V10.encode().splitlines(keepends=True)[:2])
    assert not recognise([b'<?xml version="1.0"?>\n', b"<html>\n"])
