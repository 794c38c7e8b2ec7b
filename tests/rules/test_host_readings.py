"""What is believed of one NVML reading: absurd, unread, late and lone values accuse nobody."""

from typing import Any

import pytest

from evidence.decisions import Cause, Witness
from evidence.records import ContextKind, GpuStatus, KernelKind

LOST = {"status": GpuStatus.LOST, "error": 15}


def _errors(volatile: int | None, aggregate: int | None) -> dict[int, dict[str, Any]]:
    return {
        2: {"ecc_volatile_uncorrected": volatile, "ecc_aggregate_uncorrected": aggregate},
    }


READINGS = (
    (
        "a count of all ones is what a register of a lost card reads as",
        lambda r: [r.frame((n, _errors(2**64 - 1, 2**64 - 1))) for n in range(10, 20)],
        (),
    ),
    (
        "an absurd count in one reading is none",
        lambda r: [r.frame((10, _errors(0, 987_654_321_012)), (11, {}), (12, {}))],
        (),
    ),
    (
        "a huge count that stands in the next reading counts",
        lambda r: [r.frame((10, _errors(400_000, 400_003)), (11, _errors(400_007, 400_010)))],
        ("localized gpu-memory gpu2",),
    ),
    (
        "a storm within what was ever published counts at once",
        lambda r: [r.frame((10, _errors(5000, 5003)))],
        ("localized gpu-memory gpu2",),
    ),
    (
        "errors counted behind an unread reading are not forgotten",
        lambda r: [r.frame((10, _errors(None, None))), r.frame((11, _errors(150, 153)))],
        ("localized gpu-memory gpu2",),
    ),
    (
        "a driver that is loaded again for every program counts each error once",
        lambda r: [r.frame((10 + n, _errors(3 * (n % 2), 3))) for n in range(8)],
        ("suspected gpu-memory gpu2",),
    ),
    (
        "a remap failure that cannot be read in MIG mode is not repaired by that",
        lambda r: [
            r.frame((10, {2: {"remap_failure": True}})),
            *(
                r.frame((20 + n, {2: {"remap_failure": None, "remap_pending": None}}))
                for n in range(5)
            ),
        ],
        ("localized gpu-memory gpu2",),
    ),
    (
        "values that were never read accuse nobody",
        lambda r: [
            r.frame(
                (
                    10,
                    {
                        -1: {
                            "ecc_volatile_uncorrected": None,
                            "ecc_aggregate_uncorrected": None,
                            "remap_failure": None,
                            "remap_pending": None,
                            "sram_threshold_exceeded": None,
                            "recovery_action": None,
                            "temperature_c": None,
                        }
                    },
                )
            )
        ],
        (),
    ),
    (
        "a wish of the driver that it takes back within the second is none",
        lambda r: [r.frame((10, {2: {"recovery_action": 1}})), r.frame((11, {}))],
        (),
    ),
    (
        "an asked reset of the kernel log that is taken back within the second is none",
        lambda r: [
            r.kernel(10, 2, code=154, recovery_action="GPU Reset Required"),
            r.kernel(10.5, 2, code=154, recovery_action="None"),
        ],
        (),
    ),
)


@pytest.mark.parametrize(("sentence", "make", "told"), READINGS, ids=[c[0] for c in READINGS])
def test_readings(sentence: str, make: Any, told: tuple[str, ...], node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.feed(make(records))
    node.run_on()
    assert node.told() == list(told), sentence


def test_a_card_that_nvml_no_longer_counts_is_lost_in_its_own_words(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.take(records.frame((10, {2: {"status": GpuStatus.LOST}})))
    assert node.told() == ["localized gpu-lost gpu2"]
    assert "NVML does not count the GPU any more" in node.latest()[0].reason


def test_a_frame_sent_again_does_not_lose_a_gpu_that_came_back(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    lost = records.frame((10, {2: LOST}))
    node.take(lost)
    node.take(records.frame((20, {})))
    node.run_on()
    told = len(node.verdicts)
    state = node.state.health["0000:52:00"]
    node.take(lost, 25)
    node.run_on()
    assert node.state.health["0000:52:00"] == state
    assert len(node.verdicts) == told


def test_a_clock_that_was_set_back_by_hours_does_not_blind_us(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.frame((90_000, {})))
    node.take(records.frame((80_000, {2: LOST})), 90_001)
    assert node.told() == ["localized gpu-lost gpu2"]


def test_an_error_counted_long_ago_does_not_make_a_culprit_of_a_rank_that_is_waited_for(
    node: Any, records: Any
) -> None:
    """The kernel log is unread: only the count of months ago and the job would speak."""
    month = 30 * 86_400.0
    node.take(records.inventory(0))
    node.take(records.frame((1, {}), (2, _errors(1, 4))))
    node.run_on()
    node.take(records.frame((month, _errors(1, 4))))
    node.take(records.suspicion(month + 700, 2, stalled_s=month + 90, weight=0.7))
    node.run_on()
    assert node.told() == ["suspected gpu-memory gpu2", "suspected unknown gpu2"]


def test_an_error_counted_just_now_and_a_missing_rank_are_enough(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(records.frame((1, {}), (90, _errors(1, 4))))
    node.take(records.suspicion(700, 2, stalled_s=90, weight=0.7))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu2"]


@pytest.mark.parametrize("code", [63, 92, 32, 999])
def test_an_early_warning_beside_a_missing_rank_is_not_enough(
    code: int, node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(records.kernel(50, 2, code=code))
    node.take(records.suspicion(700, 2, stalled_s=90, weight=0.7))
    node.run_on()
    assert [v.status.value for v in node.latest()] == ["suspected"]


def test_errors_that_go_on_after_an_hour_are_told_again(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(records.frame((10, _errors(150, 153))))
    node.take(records.frame((1800, _errors(400, 403))))
    node.run_on()
    assert len(node.latest()) == 1, "within the hour it is one incident"
    node.take(records.frame((7200, _errors(900, 903))))
    node.run_on()
    assert node.told() == ["localized gpu-memory gpu2"] * 2
    assert node.latest()[1].at > node.latest()[0].at


def test_a_card_with_counted_errors_that_is_lost_later_is_another_incident(
    node: Any, records: Any
) -> None:
    node.feed(records.quiet())
    node.take(records.frame((10, _errors(150, 153))))
    node.take(records.frame((3000, {2: LOST})))
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu2", "localized gpu-memory gpu2"]


def test_an_incident_that_is_over_is_not_reopened_by_the_next_one(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    for second in (10, 5000):
        node.take(records.frame((second, {2: LOST})))
        node.take(records.frame((second + 60, {})))
        node.run_on()
    node.take(records.frame((9000, {2: LOST})))
    node.run_on()
    assert node.told() == [
        "localized gpu-lost gpu2",
        "recovered gpu-lost gpu2",
        "recovered gpu-lost gpu2",
    ]


def test_a_planned_reboot_explains_a_host_whose_clock_is_behind(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(records.context(200, ContextKind.REBOOT))
    node.take(records.kernel(80, 2, code=79), 205)
    assert node.told() == ["suspected gpu-lost gpu2"]
    assert node.latest()[0].explained_by is not None


def test_a_plan_does_not_explain_what_was_long_before_it(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    node.take(records.context(1000, ContextKind.REBOOT))
    node.take(records.kernel(80, 2, code=79), 1005)
    node.run_on()
    assert node.told() == ["localized gpu-lost gpu2"]


def test_a_rank_that_the_oom_killer_ended_is_software(node: Any, records: Any) -> None:
    node.take(records.inventory(0))
    node.take(
        records.kernel(
            80, kind=KernelKind.OOM, code=None, pci=None, message="Killed process 70 (python)"
        )
    )
    node.take(records.suspicion(700, 2, stalled_s=90, weight=0.7))
    node.run_on()
    assert node.told() == ["software software gpu2"]
    (told,) = node.latest()
    assert "Killed process 70" in told.reason
    assert {one.witness for one in told.testimony} == {
        Witness.KERNEL,
        Witness.HEALTH,
        Witness.COLLECTIVE,
    }


def test_a_rank_whose_process_the_kernel_saw_crash_is_software(node: Any, records: Any) -> None:
    node.feed(records.quiet())
    message = "python3[51807]: segfault at 7f3a8 ip 00007f3a1c2b sp 00007ffd3c1e error 4"
    node.take(
        records.kernel(9, kind=KernelKind.SEGFAULT, code=None, pci=None, pid=51807, message=message)
    )
    node.take(records.suspicion(20, gpu=1))
    node.take(records.frame((40, {})))
    node.run_on()
    assert node.told() == ["software software gpu1"]
    assert "segfault" in node.latest()[0].reason


def test_an_ecc_error_that_a_rank_threw_is_not_taken_back_by_the_oom_killer(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0))
    node.take(
        records.kernel(
            80, kind=KernelKind.OOM, code=None, pci=None, message="Killed process 70 (python)"
        )
    )
    node.take(
        records.suspicion(
            700, 2, stalled_s=90, weight=0.9, kind="own-error", cause=Cause.GPU_MEMORY
        )
    )
    node.run_on()
    assert node.told() == ["suspected gpu-memory gpu2"]


def test_an_uncorrectable_error_of_this_morning_is_no_second_witness_against_a_missing_rank(
    node: Any, records: Any
) -> None:
    grown = {3: {"ecc_volatile_uncorrected": 1, "ecc_aggregate_uncorrected": 4}}
    node.feed([*records.quiet(), records.frame((9, grown))])
    node.run_on()
    for seconds in range(19_000, 19_700, 61):
        node.take(records.frame((seconds, grown)))
    node.take(records.suspicion(19_710, 3, stalled_s=19_100))
    node.run_on()
    assert {str(one.status) for one in node.verdicts} == {"suspected"}


@pytest.mark.parametrize(("degrees", "told"), [(255, []), (97, ["localized gpu-thermal gpu2"])])
def test_a_temperature_that_no_card_survives_is_a_broken_reading(
    node: Any, records: Any, degrees: int, told: list[str]
) -> None:
    node.feed(records.quiet())
    for seconds in range(10, 900, 10):
        node.take(records.frame((seconds, {2: {"temperature_c": degrees}})))
    node.run_on()
    assert node.told() == told


@pytest.mark.parametrize("flag", ["remap_failure", "sram_threshold_exceeded"])
@pytest.mark.parametrize("apart", [True, False])
def test_a_flag_for_good_that_the_next_reading_takes_back_was_misread(
    node: Any, records: Any, flag: str, apart: bool
) -> None:
    misread = (10, {-1: {flag: True}})
    node.feed(records.quiet())
    if apart:
        node.feed([records.frame(misread), records.frame((11, {}))])
    else:
        node.take(records.frame(misread, (11, {})))
    node.run_on()
    assert node.verdicts == []
    node.feed([records.frame((20, {2: {flag: True}})), records.frame((30, {2: {flag: True}}))])
    assert [str(one.status) for one in node.verdicts] == ["localized"]


@pytest.mark.parametrize("told_ms", [None, -3_600_000])
def test_a_plan_explains_a_host_that_told_how_far_its_clock_is_behind(
    node: Any, records: Any, told_ms: int | None
) -> None:
    node.take(records.inventory(0, clock_skew_ms=told_ms))
    node.take(records.context(4000, ContextKind.GPU_RESET, gpu=2, until_s=4200))
    node.take(records.kernel(4050 - 3600, 2, code=79), 4050.5)
    node.tick(4060)
    (verdict,) = node.latest()
    assert (verdict.explained_by is not None) is (told_ms is not None)


def test_a_plan_of_an_hour_ago_does_not_explain_a_host_whose_clock_is_an_hour_behind(
    node: Any, records: Any
) -> None:
    node.take(records.inventory(0, clock_skew_ms=-3_600_000))
    node.take(records.context(4000, ContextKind.GPU_RESET, gpu=2, until_s=4200))
    node.take(records.kernel(4050, 2, code=79), 7650.5)
    node.tick(7660)
    assert node.told() == ["localized gpu-lost gpu2"]
