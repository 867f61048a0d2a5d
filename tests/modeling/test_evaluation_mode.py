"""Each module goes back to the mode that it was in."""

import contextlib
import threading

from torch import nn

from clozebert.modeling.evaluation_mode import evaluation_mode


def test_frozen_parts_stay_in_evaluation_after_an_error_too():
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[1].eval()
    with contextlib.suppress(KeyError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False]


def test_a_thread_that_ends_first_does_not_switch_dropout_on_for_the_others():
    model = nn.Sequential(nn.Dropout())
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first():
        with evaluation_mode(model):
            first_is_in.set()
            assert second_is_in.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(10)
    with evaluation_mode(model):
        second_is_in.set()
        thread.join(10)
        assert not model[0].training
    assert model[0].training
