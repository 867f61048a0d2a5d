"""What a card and a log say of a run."""

import types

import pytest

from clozebert.training.reporting.curves import read_log
from clozebert.training.reporting.run_facts import _by_phase, _card_values


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_card_lists_settings_of_the_optimizer_that_was_used(optimizer):
    decisive = {"optimizer": optimizer, "learning_rate": 1e-3, "muon_learning_rate": 0.02, "corpus_weights": []}
    decisive |= {"embedding_init": "text"}
    run = types.SimpleNamespace(optimizer=optimizer, decisive=lambda: decisive, model_name_or_path="begun")
    values = _card_values(run, None)
    wanted = {"optimizer", "learning_rate"} | ({"muon_learning_rate"} if optimizer == "muon" else set())
    assert set(values) == wanted


def test_a_list_that_a_phase_empties_is_on_the_card():
    facts = _by_phase([{"corpus": ["a", "b"], "corpus_weights": [0.9, 0.1]}, {"corpus": ["c"]}], absent=[])
    assert facts["phase 2"] == {"corpus": ["c"], "corpus_weights": []}
    facts = _by_phase([{"a": {"tokens": 1}, "b": {"tokens": 2}}, {"b": {"tokens": 2}}], absent="not used")
    assert facts["phase 2"] == {"a": "not used"}


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 2, "lo\xf3s": ',
        b'{"foo": 1}',
        b"[1, 2]",
        b'{"step": 2',
        b"\x00\xff\xfe",
        b"",
        b'{"step": "2"}',
        b"[" * 9999,
    ],
)
def test_damaged_lines_of_a_log_are_left_out_and_named(tmp_path, damage):
    log = tmp_path / "training_log.jsonl"
    log.write_bytes(b'{"step": 1, "loss": 2.5}\n' + damage + b'\n{"step": 3, "loss": 2.25}\n')
    with pytest.warns(UserWarning, match=r"training_log\.jsonl: damaged lines are left out: 2"):
        assert [entry["step"] for entry in read_log(log)] == [1, 3]


def test_a_last_line_that_a_killed_run_left_unfinished_is_no_damage(tmp_path, recwarn):
    log = tmp_path / "training_log.jsonl"
    log.write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    assert read_log(log) == [{"step": 1, "loss": 2.5}]
    # Others' garbage may be collected here, with warnings of its own.
    assert not [warning for warning in recwarn if "training_log" in str(warning.message)]
