"""Hyperparameter search with transformers' Trainer (`Trainer.hyperparameter_search`) and optuna."""

import copy
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import IntervalStrategy, set_seed

from ..utils.errors import MissingPackageError, UserError
from ..utils.untrusted import read_json_object
from .plan import say_plan
from .reports import write_json
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


def _check_shortest(run: "FinetuningRun", values: Mapping[str, Any]) -> None:
    """Raise if the shortest trial, which may be the best, has no time for its warm-up."""
    shortest = copy.copy(run.training)
    for name, value in values.items():
        setattr(shortest, name, value)
    run.check_warmup(shortest)


def search_hyperparameters(run: "FinetuningRun") -> dict[str, Any]:
    """Train with one setting after another; returns the flags of the best. DIR/hyperparameter_search.json lists all.

    The first trial uses the defaults and trains exactly as a run without a search. A trial is judged by its last
    evaluation. A resumed run does not search again.

    Raises:
        UserError: see `check_search`; or the search of a resumed run was one with other data or flags.
    """
    arguments, settings = run.arguments, {**run.settings, "arguments": {**run.settings["arguments"]}}
    if arguments.seeds is not None:
        del settings["arguments"]["seed"]  # a resumed run may add seeds before the one of the search
    path = Path(run.folder, SEARCH_FILE)
    if arguments.resume_from_checkpoint is not None and path.exists():
        found = read_json_object(path)
        # Else the found values would take the place of those that flags give now.
        refuse_other_settings(path.parent, found.get("settings", {}), settings)
        return found["best"]
    free = check_search(arguments)
    assert arguments.hyperparameter_search is not None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warning of a failed trial has a traceback
    rate, batch_size = run.training.learning_rate, run.training.per_device_train_batch_size
    epochs = run.training.num_train_epochs
    usual = {"learning_rate": rate, "per_device_train_batch_size": batch_size, "num_train_epochs": epochs}
    batch_sizes = sorted({max(1, batch_size // 2), batch_size, 2 * batch_size})
    lengths = sorted({max(1.0, epochs // 2), epochs, 2 * epochs})

    shortest = {"per_device_train_batch_size": max(batch_sizes), "num_train_epochs": min(lengths)}
    _check_shortest(run, {name: shortest[name] for name in free if name in shortest})

    said: set[int] = set()

    def space(trial: Any) -> dict[str, Any]:
        suggest: dict[str, Callable[[str], Any]] = {
            "learning_rate": lambda name: trial.suggest_float(name, rate / 5, rate * 5, log=True),
            "per_device_train_batch_size": lambda name: trial.suggest_categorical(name, batch_sizes),
            "num_train_epochs": lambda name: trial.suggest_categorical(name, lengths),
        }
        values = {name: suggest[name](name) for name in free}
        if run.training.process_index == 0 and trial.number not in said:  # asked twice with several processes
            said.add(trial.number)
            print(f"trial {trial.number}: " + ", ".join(f"{k} {v:.3g}" for k, v in values.items()), flush=True)
        return values

    say_plan(run)
    arguments_of_trials = copy.copy(run.training)  # each trial changes their values
    arguments_of_trials.save_strategy = IntervalStrategy.NO
    arguments_of_trials.load_best_model_at_end = False

    def load_model() -> Any:
        model = run.load_model()
        set_seed(run.seed)  # the same dropout as in a run without a search, whose Trainer is made after its model
        return model

    trainer = run.make_trainer(model_init=load_model, args=arguments_of_trials)
    # Only the first process would leave a trial early, and the others would wait for it.
    pruner = optuna.pruners.NopPruner() if run.training.world_size > 1 else None
    sampler, storage = optuna.samplers.TPESampler(seed=run.seed), optuna.storages.InMemoryStorage()
    study = optuna.create_study(study_name=STUDY, storage=storage, sampler=sampler, direction="maximize")
    study.enqueue_trial({name: usual[name] for name in free})
    best: Any = None
    try:
        best = trainer.hyperparameter_search(
            hp_space=space,
            compute_objective=lambda metrics: metrics[f"eval_{SELECTION}"],
            n_trials=arguments.hyperparameter_search,
            direction="maximize",
            backend="optuna",
            study_name=STUDY,
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            load_if_exists=True,
        )
    except ValueError as error:
        if "No trials are completed" not in str(error):  # how optuna says that none has a score
            raise
    best = broadcast_object_list([best and best.hyperparameters])[0]  # only the first process has the study
    if best is None:
        raise UserError(
            f"--hyperparameter_search {arguments.hyperparameter_search}: training diverged in every trial; give "
            f"a lower --learning_rate"
        )
    name, greater_is_better = run.best_metric
    if run.training.process_index == 0:
        trials = [{"state": trial.state.name.lower(), "value": trial.value, **trial.params} for trial in study.trials]
        objective = name if greater_is_better else f"-{name}"
        found = {"objective": objective, "defaults": usual, "best": best, "trials": trials, "settings": settings}
        write_json(path, found)
        print("best: " + ", ".join(f"{key} {value:.3g}" for key, value in best.items()), flush=True)
    return best
