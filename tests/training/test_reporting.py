"""What a card says of a run."""

import types

import pytest

from clozebert.training.reporting import _card_values


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_card_lists_settings_of_the_optimizer_that_was_used(optimizer):
    decisive = {"optimizer": optimizer, "learning_rate": 1e-3, "muon_learning_rate": 0.02, "corpus_weights": []}
    values = _card_values(types.SimpleNamespace(optimizer=optimizer, decisive=lambda: decisive))
    wanted = {"optimizer", "learning_rate"} | ({"muon_learning_rate"} if optimizer == "muon" else set())
    assert set(values) == wanted
