"""Each module goes back to the mode that it was in."""

import contextlib

from torch import nn

from clozebert.modeling.evaluation_mode import evaluation_mode


def test_frozen_parts_stay_in_evaluation_after_an_error_too():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[1].eval()
    with contextlib.suppress(KeyError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False]
