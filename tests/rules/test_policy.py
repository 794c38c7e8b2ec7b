import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.decisions import Cause, Level, Status
from rules.policy import SHIPPED, CardCosts, IsolateAs, Mode, PolicyError, Pool, load
from rules.rulebook import Maturity, Rule, is_rule


def entries(table: dict[str, object], prefix: str = "") -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name, content in table.items():
        assert isinstance(content, dict)
        if "value" in content:
            found[prefix + name] = content
        else:
            found |= entries(content, f"{prefix}{name}.")
    return found


def test_a_first_install_only_watches_and_acts_on_localized_verdicts() -> None:
    policy = load()
    assert policy.mode is Mode.SHADOW
    assert policy.act_on == {Status.LOCALIZED}
    assert policy.automatic_release is False


def test_the_hard_facts_are_those_that_no_later_record_can_acquit() -> None:
    assert load().hard_facts == {
        "xid-79",
        "gpu-lost",
        "remap-failure",
        "driver-reset-required",
        "sram-threshold",
    }


def test_every_cause_has_a_level_and_software_and_unknown_have_none() -> None:
    levels = load().levels
    assert set(levels) == set(Cause)
    assert levels[Cause.GPU_MEMORY] is Level.DRAIN
    assert {cause for cause, level in levels.items() if level is None} == {
        Cause.SOFTWARE,
        Cause.UNKNOWN,
        Cause.FACILITY,
    }


def test_every_shipped_entry_has_a_reason_and_a_source() -> None:
    shipped = entries(tomllib.loads(SHIPPED.read_text(encoding="utf-8")))
    policy = load()
    assert set(policy.notes) == set(shipped)
    for key, note in policy.notes.items():
        assert len(note.why) > 15 or note.why.startswith("See "), key
        assert len(note.source) > 8, key


def test_the_budget_is_the_larger_of_one_node_and_one_percent() -> None:
    budget = load().budget
    assert budget.card_costs is CardCosts.NODE
    assert budget.nodes == 1.0
    assert replace(budget, fleet_nodes=2000).nodes == 20.0


def test_a_pool_that_is_not_named_has_the_rules_of_default() -> None:
    policy = load()
    assert policy.pool(None) == policy.pool("no-such-pool") == policy.pools["default"]
    assert policy.pool("inference").at_least is Level.EVICT


def written(folder: Path, text: str) -> Path:
    path = folder / "site-policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_overrides_entry_by_entry_and_keeps_the_rest(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
isolation.mode = { value = "enforce", why = "the pilot is over", source = "change 4711" }
hard_facts.xid-95 = { value = true, why = "seen often here", source = "incident 12" }
hard_facts.sram-threshold = { value = false, why = "old cards", source = "incident 13" }

[pools.cloud.isolate_as]
value = "node"
why = "virtual machines are replaced whole"
source = "provider's contract"
""",
    )
    policy = load(path)
    assert policy.mode is Mode.ENFORCE
    assert "xid-95" in policy.hard_facts
    assert "sram-threshold" not in policy.hard_facts
    assert policy.pool("cloud") == Pool(isolate_as=IsolateAs.NODE)
    assert policy.cool_down_s == load().cool_down_s
    assert policy.notes["isolation.mode"].source == "change 4711"


def test_a_rule_is_held_in_shadow_or_switched_off_by_its_name(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
[rules]
two-witnesses.maturity = { value = "shadow", why = "on trial", source = "change 9" }
over-temperature.enabled = { value = false, why = "immersion cooling", source = "site" }
xid-74.enabled = { value = false, why = "a known bad firmware", source = "ticket 5" }
""",
    )
    policy = load(path)
    assert policy.rule("two-witnesses") == Rule(Maturity.SHADOW, enabled=True)
    assert policy.rule("over-temperature").muted == "off"
    assert policy.rule("xid-74").muted == "off"
    assert policy.rule("xid-48") == policy.rule("xid") == Rule()
    assert load().rule("two-witnesses") == Rule()


def test_every_shipped_hard_fact_and_threshold_has_a_rule_of_its_own() -> None:
    policy = load()
    for name in (*policy.hard_facts, "ecc-growth", "over-temperature"):
        assert name in policy.rules, name
        assert policy.rule(name).muted is None
    assert all(is_rule(name) for name in policy.rules)


NOTE = 'why = "for a test"\nsource = "this test"\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[isolation.moode]\nvalue = "shadow"\n' + NOTE, 1, "isolation.moode: no such key"),
        ('\n[isolation.mode]\nvalue = "loud"\n' + NOTE, 3, "one of shadow, cordon, enforce"),
        ('[isolation.act_by_s]\nvalue = "soon"\n' + NOTE, 2, "a number that is not"),
        ("[isolation.act_by_s]\nvalue = -1\n" + NOTE, 2, "a number that is not negative"),
        ("[isolation.act_by_s]\nvalue = 0\n" + NOTE, 2, "a number above zero"),
        ("[isolation.resend_s]\nvalue = nan\n" + NOTE, 2, "a number"),
        ("[isolation.automatic_release]\nvalue = 1\n" + NOTE, 2, "true or false"),
        ("[isolation.failed_retries]\nvalue = 1.5\n" + NOTE, 2, "a whole number"),
        ('[isolation.act_on]\nvalue = ["victim"]\n' + NOTE, 2, "a list of localized and suspected"),
        ('[levels.gpu-lost]\nvalue = "gentle"\n' + NOTE, 2, "one of none, cordon, drain, evict"),
        ('[levels.gremlins]\nvalue = "drain"\n' + NOTE, 1, "no such key"),
        ("[hard_facts.xid-0]\nvalue = true\n" + NOTE, 1, "no such key"),
        ("[hard_facts.gpu-lots]\nvalue = true\n" + NOTE, 1, "no such key"),
        ('[pools.a.at_mots]\nvalue = "evict"\n' + NOTE, 1, "no such key"),
        ("[fleet.nodes]\nvalue = true\n" + NOTE, 2, "a whole number"),
        ("[fleet.gpus_per_node]\nvalue = 0\n" + NOTE, 2, "above zero"),
        ('[fleet.nodes]\nvalue = 4\nsource = "x"\n', 1, "why is missing"),
        ('[fleet.nodes]\nvalue = 4\nwhy = " "\nsource = "x"\n', 3, "must be a sentence"),
        ("[fleet.nodes]\nvalue = 4\nwho = 1\n" + NOTE, 3, "only value, why and source"),
        ("\n\nfleet.nodes = 4\n", 3, "a table with value, why and source"),
        ('fleet.nodes = { value = "4", why = "w", source = "s" }\n', 1, "a whole number"),
        ("[isolation]\n", 1, "isolation: value is missing, the table is empty"),
        ("\n[[isolation]]\nmode = 1\n", 2, "a table with value, why and source"),
        ('[ isolation . "mode" ] # ours\n' + NOTE + "value = 7\n", 4, "one of shadow"),
        ("[isolation.mode]\n" + NOTE + 'value = "cordon"\nwhen.now = 1\n', 5, "only value, why"),
        (
            '[isolation.mode]\nvalue = "shadow"\nsource = "s"\nwhy = """\nfleet.nodes = 1\n"""\n'
            "[fleet.nodes]\nvalue = -1\n" + NOTE,
            8,
            "a whole number",
        ),
        ("fleet.nodes.value = 1\nfleet.nodes.value = 2\n", 2, "Cannot overwrite a value"),
        ("[fleet]\n\n[budget]\n[fleet]\n", 4, "is not TOML: Cannot declare"),
        ('fleet.nodes = { value = 1\nwhy = "w" }\n', 1, "is not TOML"),
        ("isolation = [", 1, "is not TOML"),
        ('[rules.xid-74.maturity]\nvalue = "young"\n' + NOTE, 2, "one of shadow, stable"),
        ("[rules.xid-74]\nenabled = { value = 1 }\n", 2, "why is missing"),
        ('[rules.xid-74]\nmature = { value = 1, why = "w", source = "s" }\n', 2, "no such key"),
        ("[rules.xid-074.enabled]\nvalue = true\n" + NOTE, 1, "no such key"),
        ("[rules.two-wittnesses.enabled]\nvalue = true\n" + NOTE, 1, "no such key"),
        ("[rules.enabled]\nvalue = true\n" + NOTE, 1, "no such key"),
        ('[rules."xid-74".enabled]\nvalue = "no"\n' + NOTE, 2, "true or false"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_file_line_and_key(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PolicyError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pool_whose_limits_cross_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '[pools.odd.at_least]\nvalue = "evict"\n' + NOTE)
    sentence = r", line 1: pools\.odd: at_least evict is above at_most drain"
    with pytest.raises(PolicyError, match=sentence):
        load(path)


def test_text_that_is_not_toml_and_a_missing_file_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="is not TOML"):
        load(written(tmp_path, "isolation = ["))
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load(tmp_path / "absent.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(PolicyError, match="is not UTF-8"):
        load(path)
