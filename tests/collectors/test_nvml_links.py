"""NVLink and its fabric, as drivers of several ages tell of them."""

from typing import Any

import pytest
from gpu_ticks import tick_where, ticks


def test_links_that_are_down_and_errors_that_are_not_zero_are_named(
    node: Any, collect: Any
) -> None:
    node.change(
        {
            "gpu.0.field.165.7": 0,
            "gpu.0.field.165.12": 0,
            "gpu.0.field.165.3": 2,
            "gpu.0.field.161.3": 41,
            "gpu.0.field.163.17": 2,
        }
    )
    gpus = next(ticks(collect())).gpus
    assert (gpus[0].nvlinks_active, gpus[0].nvlinks_down) == (16, (7, 12))
    assert gpus[0].nvlink_errors == {"3.replay": 41, "17.crc": 2}
    assert (gpus[1].nvlinks_active, gpus[1].nvlinks_down, gpus[1].nvlink_errors) == (18, (), {})


def test_blackwell_counts_by_other_names(node: Any, collect: Any) -> None:
    node.change(
        {f"gpu.0.field.{field}": "!3" for field in (161, 162, 163)}
        | {f"gpu.0.field.{field}": 0 for field in (206, 208, 211, 214)}
        | {"gpu.0.field.211.5": 6, "gpu.0.field.214.11": 1}
    )
    gpu = next(ticks(collect())).gpus[0]
    assert gpu.nvlink_errors == {"5.integrity": 6, "11.recovery_failed": 1}
    assert not any(name.startswith("nvlink") for name in gpu.unread)


def test_a_link_that_cannot_be_read_is_named_with_its_reason(node: Any, collect: Any) -> None:
    node.change({"gpu.0.field.162.4": "!999", "gpu.0.field.165.9": "!999"})
    gpu = next(ticks(collect())).gpus[0]
    assert gpu.unread["nvlink.4.recovery"] == "Unknown Error (999)"
    assert gpu.unread["nvlink.9.state"] == "Unknown Error (999)"
    assert (gpu.nvlinks_active, gpu.nvlinks_down) == (17, ())


def test_an_older_driver_is_asked_link_by_link(node: Any, collect: Any) -> None:
    node.change(
        {
            "gpu.0.nvlinks": "!3",
            "gpu.0.nvlink_state": 1,
            "gpu.0.nvlink_state.2": 0,
            "gpu.0.nvlink_state.12": "!2",
            "gpu.0.nvlink_error": 0,
            "gpu.0.nvlink_error.5.0": 3,
            "gpu.0.nvlink_error.6.3": 9,
        }
    )
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.nvlinks_active, gpu.nvlinks_down) == (11, (2,))
    assert gpu.nvlink_errors == {"5.replay": 3, "6.crc_data": 9}


def test_a_card_without_nvlink_says_so(node: Any, collect: Any) -> None:
    node.change({"gpu.0.nvlinks": "!3", "gpu.0.field.165": "!3"})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.nvlinks_active, gpu.nvlink_errors) == (None, None)
    assert gpu.unread["nvlinks_active"] == "Not Supported (3)"


def test_a_gpu_that_is_lost_while_its_links_are_read_is_lost(node: Any, collect: Any) -> None:
    node.change({"gpu.0.field.161.2": "!15"})
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.status, gpu.error) == ("lost", 15)


@pytest.mark.parametrize("version", [3, 2])
def test_the_fabric_is_read_in_the_form_that_the_driver_knows(
    node: Any, collect: Any, version: int
) -> None:
    node.change(
        {
            "gpu.0.fabric_version": version,
            "gpu.0.fabric": "2 999 7 0x42 00000000000000000000000000000000",
        }
    )
    gpu = next(ticks(collect())).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fabric_clique) == ("in-progress", 999, 7)
    assert (gpu.fabric_health, gpu.fabric_cluster_uuid) == (0x42, None)


def test_the_oldest_form_of_the_fabric_knows_no_health(node: Any, collect: Any) -> None:
    node.change(
        {
            "gpu.0.fabric_version": 1,
            "gpu.0.fabric_v1": "3 0 2 0 c0ffee00112233445566778899aabbcc",
        }
    )
    collector = collect()
    gpu = tick_where(collector, lambda tick: tick.gpus[0].fabric_clique == 2).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_health) == ("completed", None)
    assert gpu.fabric_cluster_uuid == "c0ffee00-1122-3344-5566-778899aabbcc"
