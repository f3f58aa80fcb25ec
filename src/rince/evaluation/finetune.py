"""Finetuning: a classifier trained from the network of a run, in a run folder of its own below it."""

from __future__ import annotations

import copy
from collections.abc import Callable

from rince.config import DataSettings, Recipe, load_recipe, validate
from rince.encoders.encoder import Encoder
from rince.errors import ConfigError
from rince.evaluation.trained import TrainedRun, open_trained
from rince.train.record import CHECKPOINT, RECIPE, recipe_of
from rince.train.setup import Brought

FOLDER = "finetune"  # of a run
RECIPES = "video/finetune"  # that tells how long, and at which rate


def finetune_recipe(run: TrainedRun, data: DataSettings) -> Recipe:
    """The recipe `video/finetune` with the data, views and network of a run."""
    given = run.recipe
    recipe = load_recipe(RECIPES, [f"scale={given.scale}", f"seed={given.seed}"])
    model = given.model.model_copy(update={"start_from": str(run.folder.resolve())})
    # The larger share holds out what the smaller does, too: what the run may be judged on is not finetuned on.
    validation = max(data.validation, recipe.data.validation)
    values = recipe.model_dump(mode="json") | {
        "data": data.model_dump(mode="json") | {"validation": validation},
        "model": model.model_dump(mode="json"),
        "views": given.views.model_dump(mode="json"),
    }
    return validate(values, RECIPES)


def finetuned(run: TrainedRun, name: str, data: DataSettings, *, say: Callable[[str], None]) -> TrainedRun:
    """The run below a run that starts from its network; made, gone on with, or as it is."""
    from rince.train.loop import train  # noqa: PLC0415 - brings Fabric
    from rince.train.runtime import Runtime  # noqa: PLC0415

    folder, recipe, brought = run.folder / FOLDER / name, finetune_recipe(run, data), _without_head(run.brought)
    resume = (folder / RECIPE).exists()
    if resume and recipe_of(folder) != recipe:
        raise ConfigError(f"{folder} holds a finetuning by another recipe; remove it to make it again")
    if resume and (folder / CHECKPOINT).exists():
        there = open_trained(folder, brought, accelerator=run.device.type)
        if there.step == there.steps:
            return there
    say(f"finetuning on {name}: {recipe.train.epochs} epochs, in {folder}")
    runtime = Runtime(1, recipe.train.precision, run.device.type)
    if not train(recipe, folder, runtime, resume=resume, brought=brought):
        raise KeyboardInterrupt
    return open_trained(folder, brought, accelerator=run.device.type)


def _without_head(brought: Brought) -> Brought:
    """The user's network again, so that finetuning does not train the one that is judged."""
    network = brought.encoder.backbone if isinstance(brought.encoder, Encoder) else brought.encoder
    return brought._replace(encoder=copy.deepcopy(network))
