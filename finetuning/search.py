"""Hyperparameter search with transformers' Trainer (`Trainer.hyperparameter_search`) and optuna."""

import copy
import importlib.util
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import IntervalStrategy, set_seed

from ..utils.errors import MissingPackageError, UserError
from ..utils.files import write_json
from ..utils.untrusted import read_json_object
from .plan import say_plan
from .resume import refuse_other_settings
from .trainer import SELECTION

if TYPE_CHECKING:
    from .run import FinetuningRun

SEARCH_FILE = "hyperparameter_search.json"
STUDY = "fine-tuning"
SEARCHED = ("learning_rate", "per_device_train_batch_size", "num_train_epochs")


def check_search(arguments: Any) -> list[str]:
    """The hyperparameters to search: those that no flag sets.

    Raises:
        ImportError: optuna is missing.
        ValueError: flags set all of them.
    """
    free = [name for name in SEARCHED if getattr(arguments, name) is None]
    if arguments.max_steps > 0:
        free = [name for name in free if name != "num_train_epochs"]
    if not free:
        names = ", ".join("num_train_epochs or max_steps" if name == "num_train_epochs" else name for name in SEARCHED)
        raise UserError(f"--hyperparameter_search: nothing to search, as {names} are all given")
    if importlib.util.find_spec("optuna") is None:
        raise MissingPackageError("--hyperparameter_search needs optuna: pip install optuna")
    return free


def search_hyperparameters(run: "FinetuningRun") -> dict[str, Any]:
    """Train with one setting after another; returns the flags of the best. DIR/hyperparameter_search.json lists all.

    The first trial uses the defaults and trains exactly as a run without a search. A trial is judged by its best
    evaluation, as a run keeps that. A resumed run goes on after the last trial that ended, or does not search again.

    Raises:
        UserError: see `check_search`; or the search of a resumed run was one with other data or flags.
    """
    arguments, settings = run.arguments, {**run.settings, "arguments": {**run.settings["arguments"]}}
    if arguments.seeds is not None:
        del settings["arguments"]["seed"]  # a resumed run may add seeds before the one of the search
    path = Path(run.folder, SEARCH_FILE)
    found: dict[str, Any] = {}
    if arguments.resume_from_checkpoint is not None and path.exists():
        found = read_json_object(path)
        # Else the found values would take the place of those that flags give now.
        refuse_other_settings(path.parent, found.get("settings", {}), settings)
    if "best" in found:
        return found["best"]
    distributions = _distributions(run, check_search(arguments))
    _check_shortest(run, distributions)
    ended = found.get("trials", [])
    listed = _all_settings(run, distributions)
    study, options = _make_study(run, distributions, ended, listed or [_defaults(run, distributions)])
    metric, greater_is_better = run.best_metric
    facts = {
        "objective": metric if greater_is_better else f"-{metric}",
        "defaults": {name: getattr(run.training, name) for name in SEARCHED},
    }
    is_first = run.training.process_index == 0

    def save(best: dict[str, Any] | None = None) -> None:
        chosen = {} if best is None else {"best": best}
        if is_first:
            write_json(path, {**facts, **chosen, "trials": _ended(study), "settings": settings})

    assert arguments.hyperparameter_search is not None
    left = _number_of_trials(run, listed, arguments.hyperparameter_search) - len(ended)
    if left > 0:
        say_plan(run)
        _make_trials(run, left, distributions, options, save)
    scored = [trial for trial in _ended(study) if trial["state"] == "complete"]
    best = broadcast_object_list([study.best_params if scored else None])[0]  # only the first process has all trials
    if best is None:
        if is_first:
            path.unlink(missing_ok=True)  # nothing in it is of use to a search with a lower rate
        raise UserError(
            f"--hyperparameter_search {arguments.hyperparameter_search}: training diverged in every trial; give "
            f"a lower --learning_rate"
        )
    save(best)
    if is_first:
        print("best: " + ", ".join(f"{key} {value:.3g}" for key, value in best.items()), flush=True)
    return best


def _distributions(run: "FinetuningRun", free: Sequence[str]) -> dict[str, Any]:
    """What the hyperparameters `free` are drawn from: values around the defaults of the run."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    rate, epochs = run.training.learning_rate, run.training.num_train_epochs
    batch_size = run.training.per_device_train_batch_size
    of_all = {
        "learning_rate": FloatDistribution(rate / 5, rate * 5, log=True),
        "per_device_train_batch_size": CategoricalDistribution(
            sorted({max(1, batch_size // 2), batch_size, 2 * batch_size})
        ),
        "num_train_epochs": CategoricalDistribution(sorted({max(1.0, epochs // 2), epochs, 2 * epochs})),
    }
    return {name: of_all[name] for name in free}


def _all_settings(run: "FinetuningRun", distributions: dict[str, Any]) -> list[dict[str, Any]] | None:
    """All settings in the order in which they are tried, the defaults first; None if a learning rate is drawn, too."""
    if not all(hasattr(one, "choices") for one in distributions.values()):
        return None
    values = itertools.product(*(one.choices for one in distributions.values()))
    settings = [dict(zip(distributions, chosen, strict=True)) for chosen in values]
    random.Random(run.seed).shuffle(settings)
    return sorted(settings, key=lambda one: one != _defaults(run, distributions))


def _number_of_trials(run: "FinetuningRun", settings: list[dict[str, Any]] | None, wanted: int) -> int:
    """As many as the user wants, or as there are settings; says so if there are fewer."""
    if settings is None or len(settings) >= wanted:
        return wanted
    if run.training.process_index == 0:
        names = " and ".join(settings[0])
        print(f"there are only {len(settings)} settings of {names} to try: each is tried once", flush=True)
    return len(settings)


def _defaults(run: "FinetuningRun", distributions: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(run.training, name) for name in distributions}


def _check_shortest(run: "FinetuningRun", distributions: dict[str, Any]) -> None:
    """Raise if the shortest trial, which may be the best, has no time for its warm-up."""
    shortest = copy.copy(run.training)
    for name, choose in (("per_device_train_batch_size", max), ("num_train_epochs", min)):
        if name in distributions:
            setattr(shortest, name, choose(distributions[name].choices))
    run.check_warmup(shortest, of="the shortest trial of the search")


def _make_study(
    run: "FinetuningRun", distributions: dict[str, Any], trials: Sequence[dict[str, Any]], first: list[dict[str, Any]]
) -> tuple[Any, dict[str, Any]]:
    """A study that goes on after the trials that have ended, with those of the settings `first` that had none.

    Returns:
        the study, and the options by which Trainer finds it.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warning of a failed trial has a traceback
    # A resumed search must not draw the values of its first trials again.
    sampler = optuna.samplers.TPESampler(seed=(run.seed + len(trials)) % (1 << 32))
    options: dict[str, Any] = {"study_name": STUDY, "storage": optuna.storages.InMemoryStorage(), "sampler": sampler}
    study = optuna.create_study(**options, direction="maximize")
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[trial["state"].upper()],
                value=trial["value"],
                params={name: trial[name] for name in distributions},
                distributions=distributions,
                intermediate_values={int(step): value for step, value in trial["evaluations"].items()},
            )
        )
    ended = [{name: trial[name] for name in distributions} for trial in trials]
    for setting in first:
        if setting not in ended:
            study.enqueue_trial(setting)
    return study, options


class _Objective:
    """The number that a trial is judged by: that of its best evaluation.

    It is NaN from the first one on that is not finite: optuna takes NaN for a failed trial, infinity for a good one.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.best = -math.inf

    def __call__(self, metrics: dict[str, float]) -> float:
        found = metrics[f"eval_{SELECTION}"]
        self.best = max(self.best, found) if math.isfinite(found) and not math.isnan(self.best) else math.nan
        return self.best


def _ended(study: Any) -> list[dict[str, Any]]:
    """The trials of a study that have ended, with the objective after each evaluation."""
    return [
        {
            "state": trial.state.name.lower(),
            "value": trial.value,
            **trial.params,
            "evaluations": {step: x for step, x in trial.intermediate_values.items() if math.isfinite(x)},
        }
        for trial in study.trials
        if trial.state.is_finished()
    ]


def _make_trials(
    run: "FinetuningRun", number: int, distributions: dict[str, Any], options: dict[str, Any], save: Callable[[], None]
) -> None:
    """Train with `number` settings.

    Args:
        options: of the study, see `_make_study`.
        save: called before each trial; it writes down those that have ended.
    """
    import optuna

    said: set[int] = set()
    objective = _Objective()

    def space(trial: Any) -> dict[str, Any]:
        values = {
            name: trial.suggest_categorical(name, one.choices)
            if isinstance(one, optuna.distributions.CategoricalDistribution)
            else trial.suggest_float(name, one.low, one.high, log=one.log)
            for name, one in distributions.items()
        }
        if run.training.process_index == 0 and trial.number not in said:  # asked twice with several processes
            said.add(trial.number)
            save()
            print(f"trial {trial.number}: " + ", ".join(f"{k} {v:.3g}" for k, v in values.items()), flush=True)
        return values

    def load_model() -> Any:
        objective.begin()
        model = run.load_model()
        set_seed(run.seed)  # the same dropout as in a run without a search, whose Trainer is made after its model
        return model

    arguments_of_trials = copy.copy(run.training)  # each trial changes their values
    arguments_of_trials.save_strategy = IntervalStrategy.NO
    arguments_of_trials.load_best_model_at_end = False
    trainer = run.make_trainer(arguments=arguments_of_trials, model_init=load_model)
    try:
        trainer.hyperparameter_search(
            hp_space=space,
            compute_objective=objective,
            n_trials=number,
            direction="maximize",
            backend="optuna",
            # Only the first process would leave a trial early, and the others would wait for it.
            pruner=optuna.pruners.NopPruner() if run.training.world_size > 1 else None,
            load_if_exists=True,
            **options,
        )
    except ValueError as error:
        if "No trials are completed" not in str(error):  # how optuna says that none has a score
            raise
