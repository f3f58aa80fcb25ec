"""Named breakages of the source, and the tests that must notice: `make breakages`, or `make breakages ONLY=name`.

Each is applied by itself to a copy of the tree, where only its tests are run; a breakage that they do not notice has
survived, and a test is missing. A breakage finds its place by its text, which stands in exactly one place below
src/rince, in whichever file: choose the expression that matters and leave out what surrounds it. To add one, break the
code, see which test near by fails (or write it), and add an entry:

    Breakage("name", "what stands there", "what breaks it", "tests/unit/test_near.py -k by_this_test"),
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "examples", "scripts", "README.md", "pyproject.toml", "Makefile")
TEXTS = {".py", ".yaml", ".js", ".css", ".html"}
AT_ONCE = 2  # processes, each on a core of its own
LIMIT = 400  # seconds; a breakage that hangs is noticed by pytest-timeout first


@dataclass(frozen=True)
class Breakage:
    """One way to be wrong: its name, the text it replaces and by what, and arguments of pytest that must fail."""

    name: str
    find: str
    replace: str
    tests: str


REPLAY = "tests/train/test_replay.py"
VIDEOS = "tests/train/test_video_training.py"
JUDGE = "tests/unit/test_judge.py"
START_FROM = "tests/train/test_start_from.py"
SETTINGS = "tests/train/test_settings.py"
PHOTOGRAPHS = "tests/train/test_large_images.py"
RESUME = "tests/train/test_resume.py"
CHECKPOINTS = "tests/train/test_checkpoints.py"
SEALED = "tests/unit/test_sealed_tables.py"
ORDER = "tests/unit/test_order_and_schedule.py"
PROBE = "tests/unit/test_probe.py"
FIGURES = "tests/unit/test_figures.py"
IN_BATCH = "tests/distributed/test_in_batch.py"
VECTORS = "tests/train/test_vectors.py"
VECTOR_FILES = "tests/unit/test_vector_files.py"
DOORS = "tests/train/test_doors.py"
TABLES = "tests/unit/test_tables.py"
TEXTS_READ = "tests/unit/test_texts.py"
METRICS = "tests/unit/test_metrics.py"
EXPORT = "tests/evaluation/test_export.py"
FEATURES = "tests/unit/test_features.py"
NETWORKS = "tests/unit/test_networks.py"
PRETRAINED = "tests/train/test_pretrained.py"
IDENTITY = "tests/train/test_identity.py"
FULL_DISK = "tests/train/test_full_disk.py"

BREAKAGES = (
    # Groups of samples, and what only the log asks for.
    Breakage(
        "groups-parted-by-validation",
        "    if source.sample_groups is None:\n        units",
        "    if True:\n        units",
        "tests/unit/test_parts.py -k whole_groups",
    ),
    Breakage(
        "intervals-pass-over-groups",
        "    if groups is None:\n        return _Units(mean, around, counted)",
        "    if True:\n        return _Units(mean, around, counted)",
        "tests/unit/test_paired.py -k plain_loop",
    ),
    Breakage(
        "watched-keys-leave-a-trace",
        "        buffer.copy_(before[name])",
        "        pass",
        "tests/train/test_video_training.py -k logs_how",
    ),
    # Search: ties, and samples that lie in the gallery, too.
    Breakage(
        "ties-in-any-order",
        "if k < scores.shape[1] and len(split):",
        "if len(split) < 0:",
        "tests/unit/test_retrieval.py -k equal_items",
    ),
    Breakage(
        "equal-items-differ",
        "return scores if first is None else scores[:, first]",
        "return scores",
        "tests/unit/test_retrieval.py -k equal_items",
    ),
    Breakage(
        "counted-in-its-own-gallery",
        "len(gallery) - int(own is not None)",
        "len(gallery)",
        "tests/unit/test_retrieval.py -k itself",
    ),
    Breakage(
        "finds-itself-in-a-judged-split",
        "test = replace(test, same=self.same)",
        "test = replace(test, same=None)",
        "tests/evaluation/test_evaluate.py -k another_split",
    ),
    Breakage(
        "scores-in-float32",
        "checked.append(in_float64(scores.detach()))",
        "checked.append(scores.detach().float())",
        "tests/unit/test_outliers.py -k tenth_digit",
    ),
    # Margins and learning rates.
    Breakage(
        "margin-one-level-too-high", "(shared - 1).clamp(min=0)", "shared", "tests/unit/test_baselines.py -k margins"
    ),
    Breakage(
        "margin-beyond-the-sphere", "asked.clamp(max=FARTHEST)", "asked", "tests/unit/test_baselines.py -k margins"
    ),
    Breakage("cosine-by-epoch-always", "if by_epoch else step / steps", "", f"{ORDER} -k by_step"),
    Breakage("cosine-of-few-by-epoch", " and epochs > FEW", "", f"{ORDER} -k few_epochs"),
    # Pixels: how images are opened and what testing sees of them.
    Breakage(
        "exif-turned-the-other-way", "6: (True, (1,)),", "6: (True, (0,)),", "tests/unit/test_upright.py -k upright"
    ),
    Breakage(
        "sides-not-swapped",
        "self._stored[::-1] if self._orientation in SIDEWAYS else self._stored",
        "self._stored",
        "tests/unit/test_upright.py -k upright",
    ),
    Breakage("no-room-around-the-centre", "ROOM = 256 / 224", "ROOM = 1.0", "tests/unit/test_centre.py -k room"),
    Breakage(
        "room-around-small-images", "if shorter > size else size", "if size else size", "tests/unit/test_centre.py"
    ),
    Breakage(
        "thin-neighbour-unseen",
        "max(1, round(side / max(image.size) * THUMB))",
        "round(side / max(image.size) * THUMB)",
        "tests/unit/test_centre.py -k among_neighbours",
    ),
    # Training: a step of momentum contrast.
    Breakage(
        "weight-decay-dropped",
        "momentum=settings.momentum, weight_decay=settings.weight_decay",
        "momentum=settings.momentum",
        REPLAY,
    ),
    Breakage(
        "weight-decay-dropped-adam",
        "return kind(groups, lr=settings.lr, weight_decay=settings.weight_decay)",
        "return kind(groups, lr=settings.lr)",
        f"{REPLAY} -k adam",
    ),
    Breakage("sgd-momentum-dropped", "momentum=settings.momentum, weight_decay", "momentum=0.9, weight_decay", REPLAY),
    Breakage(
        "over-positives-dropped", "over_positives=recipe.loss.over_positives,", "", f"{REPLAY} -k 'sum or pooled'"
    ),
    Breakage("over-ranks-dropped", "over_ranks=recipe.loss.over_ranks,", "", f"{REPLAY} -k mean"),
    Breakage(
        "in-and-out-dropped",
        "RankTerm(**term.model_dump())",
        "RankTerm(term.temperature, includes_closer=term.includes_closer)",
        REPLAY,
    ),
    Breakage(
        "includes-closer-dropped",
        "RankTerm(**term.model_dump())",
        "RankTerm(term.temperature, term.positives)",
        f"{REPLAY} -k closer",
    ),
    Breakage(
        "wrong-key-into-the-bank", "keys.append(now.keys[0])", "keys.append(now.keys[-1])", f"{VIDEOS} -k plain_loop"
    ),
    Breakage("frozen-twin", "self.twin.update(self.raw)", "pass", REPLAY),
    Breakage(
        "wrong-twin-momentum",
        "MomentumTwin(given.encoder, recipe.twin.momentum,",
        "MomentumTwin(given.encoder, 0.99,",
        REPLAY,
    ),
    Breakage("learning-rate-ignored", 'group["lr"] = rate * group', 'group["share"] = group', f"{REPLAY} -k warm-up"),
    Breakage(
        "key-view-is-query-view",
        "epoch=epoch, view=number, sample_ids=drawn_by)",
        "epoch=epoch, view=0, sample_ids=drawn_by)",
        REPLAY,
    ),
    Breakage(
        "labels-of-other-samples", "self.classes[ids], made.views", "self.classes[ids.flip(0)], made.views", REPLAY
    ),
    Breakage(
        "start-from-ignored",
        "if recipe.model.start_from and fresh:",
        "if False:",
        f"{START_FROM} -k network",
    ),
    Breakage(
        "batch-of-another-seed",
        "recipe.train.batch, recipe.seed, recipe.train.keep_last_batch",
        "recipe.train.batch, 0, recipe.train.keep_last_batch",
        f"{REPLAY} -k plain_loop",
    ),
    Breakage(
        "gradients-pile-up",
        "state.optimizer.zero_grad()\n            state.step += 1",
        "state.step += 1",
        f"{REPLAY} -k plain_loop",
    ),
    Breakage("twin-buffers-dropped", ", buffers=recipe.twin.buffers)", ")", f"{REPLAY} -k copied"),
    Breakage(
        "bank-start-dropped",
        "encoder.dim, start=recipe.bank.start, seed=recipe.seed)\n        self.bank = bank",
        "encoder.dim)\n        self.bank = bank",
        f"{REPLAY} -k random",
    ),
    Breakage(
        "start-from-on-resume",
        "if recipe.model.start_from and fresh:",
        "if recipe.model.start_from:",
        f"{START_FROM} -k goes_on",
    ),
    Breakage(
        "head-started-from-too",
        "encoder.backbone.load_state_dict({name: found[name] for name in wanted})",
        "encoder.load_state_dict(saved)",
        f"{START_FROM} -k head",
    ),
    Breakage("adam-is-sgd", 'if settings.kind == "sgd":', "if settings.kind:", f"{REPLAY} -k adam"),
    Breakage("sgd-without-momentum", "momentum=settings.momentum, weight_decay", "weight_decay", REPLAY),
    Breakage("any-order-dropped", "        allow_any_order=recipe.loss.allow_any_order,\n", "", f"{REPLAY} -k 'fall'"),
    Breakage(
        "encoder-of-another-seed",
        "torch.manual_seed(recipe.seed)\n        backbone",
        "torch.manual_seed(0)\n        backbone",
        f"{SETTINGS} -k first_weights",
    ),
    Breakage(
        "channels-last-ignored",
        "        if self.channels_last:",
        "        if False:",
        "tests/unit/test_models.py -k memory",
    ),
    Breakage(
        "views-of-epoch-0-always",
        "self.source.load(ids, numbers, seed=self.seed, epoch=epoch)",
        "self.source.load(ids, numbers, seed=self.seed, epoch=0)",
        f"{SETTINGS} -k every_epoch",
    ),
    Breakage(
        "views-in-memory-of-epoch-0-always",
        "epoch=epoch, view=number, sample_ids=drawn_by)",
        "epoch=0, view=number, sample_ids=drawn_by)",
        f"{SETTINGS} -k every_epoch",
    ),
    Breakage(
        "crops-of-files-of-epoch-0-always",
        "draw_parameters(*sizes, seed=seed, epoch=epoch",
        "draw_parameters(*sizes, seed=seed, epoch=0",
        f"{SETTINGS} -k every_epoch",
    ),
    Breakage(
        "vectors-of-epoch-0-always",
        "return self.maker.make(rows, seed=seed, epoch=epoch, view=view, sample_ids=sample_ids)",
        "return self.maker.make(rows, seed=seed, epoch=0, view=view, sample_ids=sample_ids)",
        f"{SETTINGS} -k noise_of_its_own",
    ),
    Breakage(
        "clips-of-epoch-0-always",
        "self.sampler.draw(seed, epoch, ids",
        "self.sampler.draw(seed, 0, ids",
        "tests/unit/test_clips.py -k frames_that_were_drawn",
    ),
    Breakage(
        "crops-of-clips-of-epoch-0-always",
        "draw_parameters(heights, widths, seed=seed, epoch=epoch",
        "draw_parameters(heights, widths, seed=seed, epoch=0",
        "tests/unit/test_clips.py -k crops_of_its_own",
    ),
    # Validation, on samples held out.
    Breakage(
        "held-out-samples-trained-on",
        "self.kept[self.order.ids(epoch, step)]",
        "self.order.ids(epoch, step)",
        "tests/train/test_validation.py -k no_method_trains",
    ),
    Breakage(
        "held-out-by-row",
        "key=digests.__getitem__)",
        "key=lambda row: row)",
        "tests/unit/test_parts.py -k smallest_hashes",
    ),
    Breakage("part-with-the-ids-of-the-whole", "._replace(ids=None)", "", "tests/unit/test_parts.py -k same_samples"),
    Breakage(
        "later-of-two-equal-is-best",
        'score > best["score"]',
        'score >= best["score"]',
        "tests/train/test_validation.py -k two_equal",
    ),
    Breakage(
        "best-so-far-forgotten",
        'dict(saved.get("best", {}))',
        "{}",
        "tests/train/test_validation.py -k earlier_is_best",
    ),
    Breakage(
        "judged-with-batch-statistics",
        "training = encoder.training\n    encoder.eval()\n    try:",
        "training = encoder.training\n    try:",
        "tests/train/test_validation.py -k 'leaves_the_encoder or changes_nothing'",
    ),
    Breakage(
        "validation-in-its-own-gallery",
        "return Part(self.source, others(self.held_out, len(self.source)))",
        "return Part(self.source, torch.arange(len(self.source)))",
        "tests/train/test_validation.py -k every_few_epochs",
    ),
    Breakage(
        "test-part-trained-on",
        "return Part(whole, rest, ",
        "return Part(whole, torch.arange(len(whole)), ",
        "tests/unit/test_parts.py -k gives_up_a_part",
    ),
    Breakage(
        "validation-unweighted",
        "loss + float(output.total) * len(step.ids)",
        "loss + float(output.total)",
        f"{REPLAY} -k held_out",
    ),
    Breakage("validation-with-batch-statistics", "encoder.eval(), self.twin.eval()", "pass", f"{REPLAY} -k held_out"),
    Breakage(
        "classifier-validated-with-batch-statistics",
        "        encoder.eval()\n        with torch.no_grad():\n            for step in steps:\n                with self",
        "        with torch.no_grad():\n            for step in steps:\n                with self",
        f"{SETTINGS} -k validation_loss",
    ),
    Breakage(
        "validation-leaves-eval",
        "encoder.train(), self.twin.train()",
        "pass",
        "tests/train/test_methods.py -k 'learns and plateau'",
    ),
    Breakage(
        "validation-with-training-views",
        "lambda number: (HELD_OUT_EPOCH, batches",
        "lambda number: (0, batches",
        f"{REPLAY} -k held_out",
    ),
    Breakage(
        "validation-before-the-bank-is-full",
        "return len(self.bank) == len(self.bank.keys)",
        "return True",
        f"{VIDEOS} -k infonce",
    ),
    # Baselines and their settings.
    Breakage(
        "smoothing-dropped",
        "sibling_targets(above, recipe.method.smoothing)",
        "sibling_targets(above, 0.0)",
        f"{SETTINGS} -k smooth",
    ),
    Breakage(
        "weight-of-classes-dropped", "loss = (1 - self.weight) * fine_sum", "loss = fine_sum", f"{SETTINGS} -k baseline"
    ),
    Breakage(
        "weight-of-superclasses-dropped",
        "loss = loss + self.weight * coarse_sum",
        "loss = loss + coarse_sum",
        f"{SETTINGS} -k baseline",
    ),
    Breakage(
        "weights-of-two-heads-dropped",
        "backward(self.weights[0] * made[0].total + self.weights[1] * made[1].total)",
        "backward(made[0].total + made[1].total)",
        f"{SETTINGS} -k heads",
    ),
    Breakage(
        "dropout-dropped",
        "nn.Sequential(nn.Dropout(self.dropout), linear)",
        "nn.Sequential(nn.Dropout(0.0), linear)",
        f"{SETTINGS} -k dropout",
    ),
    Breakage(
        "dropout-the-same-at-every-step",
        "uniform(self.recipe.seed, step, DROPOUT",
        "uniform(self.recipe.seed, 0, DROPOUT",
        f"{SETTINGS} -k hides",
    ),
    Breakage("bins-dropped", "bins=self.recipe.method.bins", "bins=5", f"{SETTINGS} -k bins"),
    Breakage("slack-dropped", "slack=recipe.method.slack", "slack=0.1", f"{SETTINGS} -k slack"),
    Breakage(
        "margins-reversed",
        "RankedTriplet(recipe.method.margins)",
        "RankedTriplet(sorted(recipe.method.margins))",
        f"{SETTINGS} -k margins",
    ),
    # Loss.
    Breakage(
        "excluded-is-a-negative",
        "flat.index_fill_(0, _places(_searched(ranks) < 0), -torch.inf)",
        "pass",
        "tests/unit/test_blockwise.py -k equals_the_dense_loss",
    ),
    Breakage(
        "mean-over-ranks-is-a-sum",
        'share = 1.0 if self.over_ranks == "sum" else 1.0 / len(self.terms)',
        "share = 1.0",
        "tests/unit/test_loss.py -k naive",
    ),
    Breakage(
        "divisor-ignored",
        "per_rank = self._share(similarities, ranks, divisor)",
        "per_rank = self._share(similarities, ranks, counted)",
        "tests/unit/test_blockwise.py -k add_up",
    ),
    Breakage(
        "closer-ranks-not-counted",
        "used.append((closer if term.includes_closer else has_rank).sum())",
        "used.append(has_rank.sum())",
        "tests/unit/test_loss.py -k naive",
    ),
    Breakage(
        "supcon-without-its-positives",
        "everyone = torch.logaddexp(_logsumexp(positive, logits), opponents)",
        "everyone = opponents",
        "tests/unit/test_loss.py -k supcon",
    ),
    Breakage(
        "weights-of-terms-dropped",
        "weights = [term.weight * share for term in self.terms]",
        "weights = [share for term in self.terms]",
        "tests/unit/test_loss.py -k supcon",
    ),
    Breakage(
        "farther-ranks-taken-out-at-once",
        "flat.index_fill_(0, place, -torch.inf)",
        "flat.index_fill_(0, torch.cat(places), -torch.inf)",
        "tests/unit/test_blockwise.py -k equals_the_dense_loss",
    ),
    Breakage("nan-in-the-gradient-hidden", "total = total * torch.nan", "pass", "tests/unit/test_blockwise.py -k nan"),
    Breakage(
        "opponents-without-farther-ranks",
        "(ranks == NEGATIVE) | (ranks > rank)",
        "ranks == NEGATIVE",
        "tests/unit/test_loss.py -k naive",
    ),
    Breakage(
        "other-samples-keys-are-negatives",
        "torch.full((views, queries, queries), EXCLUDED",
        "torch.full((views, queries, queries), 0",
        "tests/unit/test_moco.py",
    ),
    # Ranks.
    Breakage(
        "parents-are-classes", "((tree == 1) | (tree == 2))", "(tree == 1)", "tests/unit/test_sources.py -k parents"
    ),
    Breakage(
        "levels-count-from-the-bottom",
        "path + path[-1:] * (depth - len(path))",
        "path[:1] * (depth - len(path)) + path",
        "tests/unit/test_ranks.py -k uneven",
    ),
    Breakage(
        "a-part-of-the-folders-has-levels-of-its-own",
        "folder_paths=tuple(even_paths(paths))",
        "folder_paths=tuple(paths)",
        "tests/unit/test_uneven.py -k part_of_the_classes",
    ),
    Breakage(
        "two-cranes-are-one",
        "            and _leaves_out(path, other)\n",
        "",
        "tests/unit/test_uneven.py -k stay_two",
    ),
    Breakage(
        "threshold-excluded",
        "masked_fill_(scores >= threshold, rank)",
        "masked_fill_(scores > threshold, rank)",
        "tests/unit/test_ranks.py -k thresholds",
    ),
    Breakage(
        "random-vectors-are-neighbours",
        "ranks = ranks.to(own.device)\n        ranks.masked_fill_(own[:, None] == others, 1)\n        ranks.masked_fill_(others == RANDOM, NEGATIVE)",
        "ranks = ranks.to(own.device)\n        ranks.masked_fill_(own[:, None] == others, 1)",
        "tests/unit/test_sources.py -k near",
    ),
    Breakage(
        "past-clips-are-negatives",
        "return InstanceRanks(same=EXCLUDED)",
        "return InstanceRanks(same=NEGATIVE)",
        f"{VIDEOS} -k plain_loop",
    ),
    # Bank and twin.
    Breakage(
        "bank-forgets-where-it-was",
        "self._cursor.copy_((self._cursor + len(keys)) % len(self.keys))",
        "pass",
        "tests/unit/test_bank.py -k deque",
    ),
    Breakage(
        "bank-counts-no-random-vectors",
        "int((self.labels != UNFILLED).sum())",
        "int((self.labels >= 0).sum())",
        "tests/unit/test_bank.py -k random",
    ),
    Breakage(
        "bank-changes-under-the-gradient",
        "self.keys.clone() if queries.requires_grad and torch.is_grad_enabled() else self.keys",
        "self.keys",
        "tests/unit/test_bank.py -k backward",
    ),
    Breakage(
        "twin-moves-by-the-momentum",
        "for name in own], 1.0 - self.momentum)",
        "for name in own], self.momentum)",
        "tests/unit/test_momentum.py",
    ),
    # Views and order.
    Breakage(
        "photographs-key-view-is-query-view",
        "zip(self.crops.to(device).unbind(1), ",
        "zip([self.crops.to(device)[:, 0]] * len(self.parameters), ",
        f"{PHOTOGRAPHS} -k second_views",
    ),
    Breakage(
        "photographs-coloured-as-the-query",
        "unbind(1), self.parameters, strict",
        "unbind(1), [self.parameters[0]] * len(self.parameters), strict",
        f"{PHOTOGRAPHS} -k second_views",
    ),
    Breakage(
        "crop-ratio-not-logarithmic",
        "low, high = math.log(ratio[0]), math.log(ratio[1])",
        "low, high = ratio[0] - 1, ratio[1] - 1",
        "tests/unit/test_views.py -k crops_equal",
    ),
    Breakage(
        "crop-never-at-the-far-edge", "* (spare + 1)).floor()", "* spare).floor()", "tests/unit/test_views.py -k crops"
    ),
    Breakage(
        "one-order-of-jitter",
        "[(order * len(ORDERS)).long()]",
        "[(order * 0).long()]",
        "tests/unit/test_views.py -k ranges",
    ),
    Breakage(
        "views-draw-alike",
        "for word in (seed, epoch, view):",
        "for word in (seed, epoch, 0):",
        "tests/unit/test_views.py -k another_seed",
    ),
    Breakage(
        "last-batch-always-kept",
        "recipe.seed, recipe.train.keep_last_batch)",
        "recipe.seed, True)",
        f"{SETTINGS} -k last_batch",
    ),
    # Texts.
    Breakage(
        "whitespace-is-a-text",
        "if value is None or not value.strip()]",
        "if not value]",
        f"{TEXTS_READ} -k bad_input",
    ),
    Breakage(
        "a-class-under-two-groups",
        "if group != before:",
        "if False:",
        f"{TEXTS_READ} -k 'bad_input or slip'",
    ),
    Breakage(
        "levels-that-cross",
        "    _refuse_crossed(levels, names, source)\n",
        "",
        f"{TEXTS_READ} -k cross",
    ),
    Breakage(
        "a-validation-split-is-tested-on",
        'not {test, "test"} & set(there)',
        "set(there) == {train}",
        "tests/unit/test_parts.py -k no_test_split",
    ),
    Breakage(
        "all-words-left-out",
        "least = min(self.word_dropout, max(drawn))",
        "least = self.word_dropout",
        f"{TEXTS_READ} -k never_are_all",
    ),
    Breakage(
        "the-finer-level-first",
        "levels.sort(key=lambda level: (len(level.groups),",
        "levels.sort(key=lambda level: (-len(level.groups),",
        f"{TEXTS_READ} -k coarser_first",
    ),
    Breakage(
        "a-missing-gallery-is-a-text",
        "if given_itself and not (itself and isinstance(samples, str)):",
        "if False:",
        "tests/train/test_pretrained.py -k never_a_gallery",
    ),
    Breakage(
        "labels-of-found-texts-dropped",
        "return Texts(place, texts, labels, names, views, paths, places)",
        "return _unlabelled(place, texts, views, places)",
        f"{TEXTS_READ} -k keeps_its_labels",
    ),
    # Schedules.
    Breakage(
        "warm-up-from-a-fixed-rate",
        "schedule.warmup_from + (target",
        "0.01 + (target",
        f"{REPLAY} -k warm-up",
    ),
    Breakage("cosine-to-zero", "low = lr * schedule.floor", "low = 0.0", f"{ORDER} -k papers_schedule"),
    Breakage(
        "cosine-an-epoch-late",
        "(1 + step // steps_per_epoch)",
        "(step // steps_per_epoch)",
        f"{ORDER} -k papers_schedule",
    ),
    Breakage(
        "plateau-without-a-floor", "return max(rate, schedule.floor)", "return rate", f"{ORDER} -k torchs_scheduler"
    ),
    Breakage(
        "plateau-not-applied",
        "rates[step.step] * plateau_factor(recipe.schedule, state.validation)",
        "rates[step.step]",
        "tests/train/test_methods.py -k 'learns and plateau'",
    ),
    # Resuming.
    Breakage("no-checkpoint-by-the-clock", " or by_the_clock", "", f"{SETTINGS} -k minutes"),
    Breakage("checkpoint-not-on-disk", "os.fsync(file.fileno())", "pass", f"{RESUME} -k on_the_disk"),
    Breakage(
        "checkpoint-written-in-place",
        'temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{WRITING}")\n        file = temporary.open("xb")',
        'temporary = path\n        file = temporary.open("wb")',
        f"{RESUME} -k failed_write",
    ),
    Breakage(
        "validation-forgotten",
        'self.validation = list(saved["validation"])',
        "self.validation = []",
        "tests/train/test_methods.py -k 'learns and plateau'",
    ),
    Breakage(
        "optimizer-forgotten",
        'self.optimizer.load_state_dict(saved["optimizer"])',
        "pass",
        "tests/train/test_methods.py -k 'learns and dropout'",
    ),
    Breakage("metrics-written-twice", "os.ftruncate(self._file, position)", "pass", f"{FULL_DISK} -k beyond"),
    Breakage(
        "other-ranks-of-classes-accepted", "return digest_of(self.table)", 'return ""', f"{RESUME} -k another_file"
    ),
    Breakage(
        "other-ranks-of-samples-accepted",
        "return digest_of(self.vectors, self._limits)",
        'return ""',
        f"{RESUME} -k another_file",
    ),
    Breakage(
        "precision-forgotten",
        'runtime.load_precision_state(saved["precision"])',
        "pass",
        f"{RESUME} -k scale_of_gradients",
    ),
    # Identity: what does not belong together does not meet.
    Breakage(
        "recipe-edited-while-it-stood-still",
        "    check_recipe(folder, recipe, saved)\n            check_network",
        "    check_network",
        f"{IDENTITY} -k edited",
    ),
    Breakage(
        "judged-by-another-recipe",
        "    check_recipe(folder, recipe, saved)\n    check_network",
        "    check_network",
        f"{IDENTITY} -k edited",
    ),
    Breakage("no-key-may-change", "name not in MAY_CHANGE and", "", f"{IDENTITY} -k may_change"),
    Breakage(
        "judged-on-other-training-samples",
        "run.check_trained_on(self.train)",
        "pass",
        f"{IDENTITY} -k replaced",
    ),
    Breakage("other-pictures-beside-the-numbers", "album.refuse_others()", "pass", f"{IDENTITY} -k pictures"),
    Breakage("table-of-different-samples", 'if known != sides["test"]:', "if False:", f"{IDENTITY} -k table"),
    Breakage(
        "judged-by-ranks-of-today",
        'if self.noted("ranks") not in',
        'if "" not in',
        f"{IDENTITY} -k ranks_that_are_not",
    ),
    Breakage(
        "results-of-an-older-checkpoint-in-a-table",
        'results["checkpoint"] == file_digest_once',
        "file_digest_once",
        "tests/recipes/test_reproduce.py -k numbers_of_its_table",
    ),
    Breakage(
        "lone-sample-refused",
        "values.numel() == values.shape[1]",
        "values.numel() == 0",
        "tests/train/test_lone_sample.py -k 'one_value or same_bits'",
    ),
    Breakage(
        "lone-sample-leaves-training",
        'if norm.__dict__.pop("lone", False):',
        "if False:",
        "tests/train/test_lone_sample.py -k one_value",
    ),
    # Files that are not what they should be.
    Breakage(
        "names-as-bytes-say",
        'os.fsencode(name).decode("utf-8", "backslashreplace")',
        "name",
        "tests/unit/test_hostile_files.py -k not_utf8",
    ),
    Breakage(
        "labels-of-two-types",
        "if _is_text(there) != _is_text(kind):",
        "if False:",
        "tests/unit/test_hostile_files.py -k two_types",
    ),
    Breakage(
        "labels-of-another-split-forgotten",
        "values |= set(pc.unique(other[name]).to_pylist())",
        "pass",
        "tests/unit/test_hostile_files.py -k several_widths",
    ),
    Breakage(
        "label-asks-for-all-memory",
        "(highest := max(values, default=-1)) >= MOST",
        "(highest := max(values, default=-1)) < -1",
        "tests/unit/test_hostile_files.py -k several_widths",
    ),
    # Judging: probe, retrieval, outliers, geometry.
    Breakage(
        "auroc-swapped",
        "evidence.counted(shares_below(inliers, outliers))",
        "evidence.counted(1 - shares_below(inliers, outliers))",
        f"{JUDGE} -k inliers",
    ),
    Breakage(
        "false-positives-swapped",
        "fpr_at_recall(inliers[evidence.known.to(inliers.device)], outliers)",
        "fpr_at_recall(outliers, inliers[evidence.known.to(inliers.device)])",
        f"{JUDGE} -k inliers",
    ),
    Breakage(
        "probe-penalty-in-other-coordinates",
        "(weight @ even).square().sum()",
        "weight.square().sum()",
        "tests/unit/test_probe.py",
    ),
    Breakage(
        "tied-distances-of-few-samples",
        "(_squared_distances(*centred) - distances) / self.regularisation",
        "_squared_distances(*centred) - distances",
        "tests/unit/test_outliers.py -k tied",
    ),
    Breakage(
        "recall-of-all-levels-by-class",
        "hits_among(near, query_labels=labels, gallery_labels=train.levels[level], same=test.same)",
        "hits_among(near, query_labels=test.labels, gallery_labels=train.labels, same=test.same)",
        "tests/unit/test_judge.py",
    ),
    Breakage(
        "finetuning-without-its-settings",
        'if tune == "all" and blocks[FINETUNED]:',
        "if False:",
        "tests/train/test_pretrained.py -k warm_up",
    ),
    Breakage(
        "its-own-positive-is-expected",
        "(found[0] - drawn).clamp(min=0) + views - 1",
        "found[0]",
        "tests/train/test_pretrained.py -k positives",
    ),
    Breakage(
        "tied-covariance-is-full", 'self.train.labels, covariance="tied")', "self.train.labels)", f"{JUDGE} -k inliers"
    ),
    Breakage(
        "nearest-neighbour-only",
        "return max(1, min(NEIGHBOUR, of_a_class))",
        "return 1",
        f"{JUDGE} -k inliers",
    ),
    Breakage(
        "gaussians-of-raw-features",
        'features = unit_vectors(features, "features")\n        labels = check_labels(labels, features, "labels")\n        self.classes',
        'labels = check_labels(labels, features, "labels")\n        self.classes',
        "tests/unit/test_outliers.py -k mixtures",
    ),
    Breakage(
        "probe-with-test-statistics",
        "(train - mean) / std, (test - mean) / std",
        "(train - mean) / std, (test - test.mean(dim=0)) / test.std(dim=0)",
        f"{PROBE} -k measured",
    ),
    Breakage(
        "probe-rate-never-falls",
        "lr_scheduler.MultiStepLR(optimizer, MILESTONES, DECAY)",
        "lr_scheduler.MultiStepLR(optimizer, MILESTONES, 1.0)",
        f"{PROBE} -k schedule",
    ),
    Breakage(
        "best-epoch-off-by-one",
        "accuracies[best], best + 1, right)",
        "accuracies[best], best, right)",
        f"{PROBE} -k schedule",
    ),
    Breakage(
        "probe-sees-one-epoch-of-crops",
        "for step in feed.epoch(epoch)]",
        "for step in feed.epoch(0)]",
        "tests/evaluation/test_evaluate.py -k papers_probe",
    ),
    Breakage(
        "probe-ignores-the-epochs",
        'self.epoch_features or self.train.features if self.probe == "paper" else self.train.features',
        "self.train.features",
        f"{JUDGE} -k epochs",
    ),
    Breakage("levels-share-one-curve", "{level: min(number, last)", "{level: 0", f"{JUDGE} -k every_level"),
    Breakage(
        "after-the-head-is-before",
        "test=Samples(self.test.embeddings, self.test.levels",
        "test=Samples(self.test.features, self.test.levels",
        f"{METRICS} -k after_the_head",
    ),
    Breakage(
        "queries-in-order-of-classes",
        "torch.cat([chosen for chosen, _ in told])",
        "torch.arange(sum(len(v) for _, v in told))",
        "tests/unit/test_retrieval.py -k its_own_numbers",
    ),
    Breakage(
        "ties-of-inliers-count-nothing",
        "searchsorted(ascending, inlier_scores, right=True)",
        "searchsorted(ascending, inlier_scores)",
        "tests/unit/test_outliers.py -k shares",
    ),
    Breakage(
        "gains-from-zero",
        "gains = (highest + 1 - found.ranks).double()",
        "gains = (highest - found.ranks).double()",
        "tests/unit/test_retrieval.py -k ndcg",
    ),
    Breakage(
        "far-items-count-as-near-ones",
        "relevance.clamp(max=float(relevance[rank]))[ranks]",
        "relevance[ranks]",
        "tests/unit/test_hierarchical.py -k loop",
    ),
    Breakage(
        "a-small-level-outdoes-a-closer-one",
        "(levels / sizes).cummin(dim=0).values",
        "levels / sizes",
        "tests/unit/test_hierarchical.py -k 'loop or perfect'",
    ),
    Breakage(
        "intersection-with-any-item",
        "among_first.minimum((places - closer).clamp(0, int(own.sum())))",
        "among_first",
        "tests/unit/test_hierarchical.py -k 'loop or itself'",
    ),
    Breakage(
        "highest-common-ancestor",
        "in reversed(list(enumerate(zip(query_levels, gallery_levels, strict=True))))",
        "in list(enumerate(zip(query_levels, gallery_levels, strict=True)))",
        "tests/unit/test_hierarchical.py -k networkx",
    ),
    Breakage(
        "ties-count-whole",
        "(below + not_above).double().mean(dim=1) / (2 * farther)",
        "not_above.double().mean(dim=1) / farther",
        "tests/unit/test_retrieval.py -k order",
    ),
    Breakage(
        "geometry-of-the-training-set",
        "lambda evidence: _uniformity(evidence.test)",
        "lambda evidence: _uniformity(evidence.train)",
        f"{JUDGE} -k geometry",
    ),
    Breakage(
        "similarity-after-is-before",
        '"after": self.test.embeddings',
        '"after": self.test.features',
        f"{JUDGE} -k similarity",
    ),
    Breakage(
        "roc-axes-swapped",
        '{"false": _plain(false), "true": _plain(true)}',
        '{"false": _plain(true), "true": _plain(false)}',
        f"{JUDGE} -k inliers",
    ),
    Breakage(
        "outliers-from-the-training-split",
        "load_any(place, self.test_split, classes, check",
        "load_any(place, self.train_split, classes, check",
        "tests/unit/test_outliers.py -k test_samples_of_their_data",
    ),
    Breakage(
        "neighbours-by-product",
        "vectors = unit_vectors(vectors_of(run, source, which, tell), which)",
        "vectors = vectors_of(run, source, which, tell)",
        "tests/unit/test_lookup.py -k by_product",
    ),
    Breakage(
        "blocks-of-a-gallery-mixed-up",
        "torch.cat([best.rows, rows + start], dim=1)",
        "torch.cat([best.rows, rows], dim=1)",
        "tests/unit/test_answers.py -k block_by_block",
    ),
    Breakage(
        "parts-of-other-samples",
        "made=made_of(run, source.fingerprint), which=which",
        "which=which",
        "tests/train/test_vectors.py -k interrupted",
    ),
    Breakage(
        "calibrated-on-itself",
        "search(gallery, vectors, k, [{row} for row in asked.tolist()])",
        "search(gallery, vectors, k, [set() for row in asked.tolist()])",
        "tests/unit/test_answers.py -k as_if_it_were_not_there",
    ),
    Breakage(
        "levels-above-calibrated-on-all",
        "left &= strength[:, level] < threshold.least",
        "left &= strength[:, level] < torch.inf",
        "tests/unit/test_answers.py -k what_is_left",
    ),
    Breakage(
        "a-bound-that-is-none",
        "bound = lower_bound(int(right_so_far[accepted - 1]), accepted)",
        "bound = int(right_so_far[accepted - 1]) / accepted",
        "tests/unit/test_answers.py -k 'promise or sure'",
    ),
    Breakage(
        "second-link-is-a-neighbour",
        "there.setdefault(file, set()).add(row)",
        "there[file] = {row}",
        "tests/unit/test_lookup.py -k link",
    ),
    Breakage(
        "probe-truncates-labels",
        'check_labels(given, given.flatten(), "train_labels").unique',
        "given.long().unique",
        "tests/unit/test_inputs.py -k one_clear_sentence",
    ),
    Breakage(
        "probe-of-tiny-features",
        "size = math.ldexp(1.0, math.frexp(largest)[1])",
        "size = 1.0",
        "tests/unit/test_inputs.py -k length",
    ),
    Breakage(
        "tiny-vectors-have-no-direction",
        "vectors / largest.where(odd, 1)",
        "vectors",
        "tests/unit/test_inputs.py -k 'length or unit'",
    ),
    Breakage(
        "index-read-ahead",
        "pre_buffer=False)  # which would read it whole",
        "pre_buffer=True)  # which would read it whole",
        "tests/evaluation/test_streaming.py -k no_more",
    ),
    Breakage(
        "generators-of-devices-not-replayed",
        "self.generators.set_rng_state(self.own, self.device)",
        "pass",
        "tests/unit/test_cached.py -k generators",
    ),
    Breakage(
        "labels-of-one-process-only",
        "labels=labels is not None, ids=ids is not None",
        "",
        "tests/distributed/test_in_batch.py -k say_so",
    ),
    Breakage(
        "files-of-a-run-by-its-name-here",
        "stem(self.before[row, seed].row, seed)",
        "stem(row, seed)",
        "tests/recipes/test_reproduce.py -k only_what_is_left",
    ),
    Breakage(
        "processes-together-until-python-ends",
        "atexit.register(_leave)",
        "pass",
        "tests/distributed/test_two_processes.py -k same_bank_everywhere",
    ),
    # Positions, and small integers.
    Breakage(
        "distances-by-products",
        "donot_use_mm_for_euclid_dist",
        "use_mm_for_euclid_dist",
        "tests/unit/test_positions.py -k exact",
    ),
    Breakage(
        "positions-in-float32",
        "torch.tensor(numbers, dtype=torch.float64)",
        "torch.tensor(numbers)",
        "tests/unit/test_positions.py -k file",
    ),
    Breakage(
        "sample-vectors-not-in-the-fingerprint",
        "digest_of(self.vectors, self._limits)",
        "digest_of(self._limits)",
        "tests/unit/test_positions.py -k other_vectors",
    ),
    Breakage("labels-stay-bytes", "labels = labels.long()", "pass", "tests/unit/test_inputs.py -k any_integer"),
    Breakage(
        "own-ranks-wrap", "own_ranks.clamp(NO_RANK, HIGHEST_RANK)", "own_ranks", "tests/unit/test_inputs.py -k wrap"
    ),
    # The loss at its edges.
    Breakage(
        "nan-of-unused-queries",
        "return opponents & used[:, None]",
        "return opponents",
        "tests/unit/test_loss_numerics.py -k no_part",
    ),
    Breakage(
        "nan-of-excluded-pairs",
        "apart = torch.where(positive, opponents[:, None] - logits, LOG_OF_NOTHING)",
        "apart = torch.where(positive, 0.0, LOG_OF_NOTHING) + opponents[:, None] - logits",
        "tests/unit/test_loss_numerics.py -k no_part",
    ),
    Breakage(
        "infinitely-far-is-missing",
        "torch.where(_any(positive), torch.inf, 0.0)",
        "torch.zeros(())",
        "tests/unit/test_loss_numerics.py -k infinitely",
    ),
    Breakage(
        "divided-by-nothing",
        "if looking_is_free(queries.device) and not sound:",
        "if False:",
        "tests/unit/test_loss_numerics.py -k divides",
    ),
    Breakage(
        "no-gradient-in-inference-mode",
        "with torch.inference_mode(False), torch.no_grad(), torch.autocast",
        "with torch.no_grad(), torch.autocast",
        "tests/unit/test_inference_mode.py -k same_within",
    ),
    Breakage(
        "bank-checked-before-it-is-float32",
        "keys, labels = keys.to(self.keys.dtype), labels.to(self.labels.dtype)\n        if looking_is_free(keys.device):\n            _check_pushed_values(keys, labels)",
        "if looking_is_free(keys.device):\n            _check_pushed_values(keys, labels)\n            keys, labels = keys.to(self.keys.dtype), labels.to(self.labels.dtype)",
        "tests/unit/test_inputs.py -k one_clear_sentence",
    ),
    # What recipes and files may hold.
    Breakage("settings-may-be-nan", ", allow_inf_nan=False)", ")", "tests/unit/test_config.py -k nan"),
    Breakage(
        "last-of-two-keys-wins", "if (key.tag, key.value) in keys:", "if False:", "tests/unit/test_config.py -k plain"
    ),
    Breakage(
        "aliases-written-out", "if self._sizes[id(node)] > LARGEST:", "if False:", "tests/unit/test_config.py -k plain"
    ),
    Breakage(
        "damaged-jpegs-are-gray",
        "if any(sign in reason for sign in LOST):",
        "if False:",
        "tests/unit/test_damaged_images.py -k early",
    ),
    Breakage(
        "unreadable-folders-are-empty",
        "os.walk(root, followlinks=True, onerror=refuse_unreadable)",
        "os.walk(root, followlinks=True)",
        "tests/unit/test_damaged_images.py -k cannot_be_read",
    ),
    # Report.
    Breakage(
        "curves-of-the-first-run",
        'curve = run.figures["curves"][named.where]',
        'curve = runs[0].figures["curves"][named.where]',
        f"{FIGURES} -k precision",
    ),
    Breakage(
        "outliers-drawn-as-inliers",
        'axes.stairs(scores["inliers"], scores["edges"], color=RANKS[0]',
        'axes.stairs(scores["outliers"], scores["edges"], color=RANKS[0]',
        f"{FIGURES} -k outliers",
    ),
    Breakage("alignment-drawn-as-uniformity", "x, y, s=58", "y, x, s=58", f"{FIGURES} -k alignment"),
    Breakage("matrix-not-sorted", "[np.ix_(order, order)]", "", f"{FIGURES} -k matrix"),
    Breakage(
        "unfinished-runs-not-told", 'run.results["step"] < run.results["of_steps"]]', "False]", f"{FIGURES} -k reader"
    ),
    Breakage(
        "reduced-scale-not-told",
        'run.results["scale"] != "full" for run in runs',
        "False for run in runs",
        f"{FIGURES} -k reader",
    ),
    Breakage(
        "protocols-without-their-runs",
        '"" if len(labels) == len(runs) else f" <small>',
        '"" if True else f" <small>',
        f"{FIGURES} -k protocols",
    ),
    Breakage("steps-that-were-not-made", "results['step']:,}\"", "results['of_steps']:,}\"", f"{FIGURES} -k facts"),
    Breakage(
        "second-best-of-two",
        "len(order) > 2 and mean == order[1]",
        "len(order) > 1 and mean == order[1]",
        f"{TABLES} -k of_two_rows",
    ),
    Breakage(
        "pairs-torn-apart",
        "[means[ours][metric] - means[theirs][metric] for",
        "[means[ours][metric] - means[theirs][metric].flip(0) for",
        f"{TABLES} -k differences",
    ),
    Breakage(
        "every-difference-above-zero-is-a-gain",
        "above, below = difference.low > 0, difference.high < 0",
        "above, below = difference.mean > 0, difference.mean < 0",
        f"{TABLES} -k differences",
    ),
    Breakage(
        "seeds-not-averaged",
        "torch.stack(side).mean(dim=0) for side in seeds",
        "side[0] for side in seeds",
        "tests/unit/test_paired.py -k scipy",
    ),
    Breakage(
        "interval-of-ninety",
        "LOW, HIGH = 0.025, 0.975",
        "LOW, HIGH = 0.05, 0.95",
        "tests/unit/test_paired.py -k scipy",
    ),
    Breakage(
        "places-in-one-grid",
        "if parse(metric).place == place)",
        "if place == PLACES[0])",
        f"{TABLES} -k grid_of_its_own",
    ),
    Breakage(
        "stale-queries-compared",
        "(found.checkpoint, found.tests) == (run.checkpoint, tests)",
        "True",
        "tests/unit/test_report.py -k this_checkpoint",
    ),
    Breakage(
        "star-is-the-first-it-fits",
        "statistics.fmean(metrics[name] for metrics in runs if name in metrics) for name in sets)",
        "statistics.fmean(metrics[name] for metrics in runs if name in metrics) for name in [*sets][:1])",
        f"{TABLES} -k star",
    ),
    Breakage(
        "uniformity-higher-is-better",
        '"geometry/uniformity", "uniformity", "down"',
        '"geometry/uniformity", "uniformity", "up"',
        "tests/unit/test_metrics.py",
    ),
    Breakage(
        "neighbours-of-the-map-from-the-test-set",
        "nearest(queries, gallery, k, same=same)",
        "nearest(queries, queries, k, same=same)",
        "tests/unit/test_report.py -k neighbours",
    ),
    # Export of pretrained networks.
    Breakage(
        "exported-mean-is-std",
        '"mean": list(made.mean)',
        '"mean": list(made.std)',
        "tests/unit/test_centre.py -k export_says",
    ),
    Breakage(
        "export-without-the-residual",
        "torch.cat([outer.weight, one, -one], dim=1)",
        "torch.cat([outer.weight, one, one], dim=1)",
        f"{EXPORT} -k 'residual or cannot_do'",
    ),
    Breakage(
        "export-rounds-what-is-centred",
        "centred = Layer(one, -adapter.mean)\n    return [centred, widened._replace(weight=widened.weight / adapter.spread), "
        "summed]",
        "scaled = widened.weight / adapter.spread\n    return [widened._replace(weight=scaled, "
        "bias=widened.bias - scaled @ adapter.mean), summed]",
        f"{EXPORT} -k residual",
    ),
    Breakage(
        "export-without-the-prompt",
        "if text and text == network.prompt",
        "if not text",
        f"{EXPORT} -k prompt",
    ),
    Breakage(
        "export-leaves-half-a-folder",
        "        try:\n            yield inside",
        "        try:\n            yield path",
        "tests/unit/test_files.py -k written_whole",
    ),
    # Disks, folders, damage.
    Breakage(
        "numbers-before-their-picture",
        "write_whole(folder / PICTURE, picture)\n                write_whole(folder / CURVES_OF_ROWS, text)",
        "write_whole(folder / CURVES_OF_ROWS, text)\n                write_whole(folder / PICTURE, picture)",
        "tests/recipes/test_reproduce.py -k only_what_is_left",
    ),
    Breakage(
        "no-fsync",
        "            os.fsync(file.fileno())\n        os.replace(temporary, path)",
        "        os.replace(temporary, path)",
        f"{FULL_DISK} -k on_the_disk_with_its_log",
    ),
    Breakage(
        "log-not-on-the-disk-before-its-checkpoint",
        "os.fsync(self._file)",
        "pass",
        f"{FULL_DISK} -k on_the_disk_with_its_log",
    ),
    Breakage(
        "older-best-over-a-newer",
        "            self._best = None\n        except",
        "        except",
        f"{FULL_DISK} -k best",
    ),
    Breakage(
        "any-seal-holds",
        'return seal[len(SEAL) :] == digest.encode() + b"\\n"',
        "return bool(digest)",
        "tests/train/test_checkpoints.py -k flipped",
    ),
    Breakage(
        "lock-on-a-file-that-is-replaced",
        '(folder / LOCK).open("ab")',
        '(folder / RECIPE).open("ab")',
        "tests/train/test_folders.py -k same_lock",
    ),
    Breakage(
        "half-written-files-of-the-living-removed",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n                    os.unlink",
        "os.unlink",
        f"{FULL_DISK} -k killed_processes_left",
    ),
    # What users bring, vectors, and the batch as its own candidates.
    Breakage(
        "own-candidate-in-batch",
        "to_own.masked_fill(others == number, EXCLUDED)",
        "to_own",
        f"{VECTORS} -k naive_loop",
    ),
    Breakage(
        "second-view-no-positive",
        "return constant(check_rank(own_ranks), device, torch.int8)",
        "return constant(0, device, torch.int8)",
        f"{VECTORS} -k naive_loop",
    ),
    Breakage("own-gradient-only", "return summed(gradient)[ctx.own], None", "return gradient[ctx.own], None", IN_BATCH),
    Breakage(
        "divided-by-own-count",
        "divisor = summed(loss.count(self.ranks).to(self.queries.dtype)) / self.processes",
        "divisor = loss.count(self.ranks).to(self.queries.dtype)",
        IN_BATCH,
    ),
    Breakage(
        "mean-over-processes-not-undone",
        "self.queries.dtype)) / self.processes",
        "self.queries.dtype))",
        IN_BATCH,
    ),
    Breakage("ids-of-processes-meet", "device=embeddings.device) + first", "device=embeddings.device)", IN_BATCH),
    Breakage(
        "towers-one-way",
        "for query, other in ((0, 1), (1, 0))",
        "for query, other in ((0, 1), (0, 1))",
        "tests/unit/test_in_batch.py -k towers",
    ),
    Breakage(
        "absent-view-is-a-query",
        "ranks.masked_fill_(~own.present[:, query, None], EXCLUDED)",
        "pass",
        "tests/unit/test_in_batch.py -k loop",
    ),
    Breakage(
        "in-batch-one-view",
        "            embeddings = embedded(encoder, step.views)",
        "            embeddings = embedded(encoder, step.views[:1] * len(step.views))",
        f"{VECTORS} -k naive_loop",
    ),
    Breakage(
        "keys-of-another-kind-stay",
        "for key, value in there.items() if key in known}",
        "for key, value in there.items()}",
        "tests/unit/test_config.py -k left_behind",
    ),
    Breakage(
        "noise-of-another-size",
        "normal.mul_(self.noise * lengths)",
        "normal.mul_(lengths)",
        f"{VECTORS} -k noise",
    ),
    Breakage(
        "dropout-of-vectors-not-made-up-for",
        "/ (1 - self.dropout)\n        return vectors",
        "/ 1.0\n        return vectors",
        f"{VECTORS} -k noise",
    ),
    Breakage(
        "adapter-not-the-identity",
        "self.inner = nn.Linear(width, hidden)\n        self.outer = nn.Linear(hidden, width)\n        nn.init.zeros_(self.outer.weight)",
        "self.inner = nn.Linear(width, hidden)\n        self.outer = nn.Linear(hidden, width)",
        f"{VECTORS} -k identity",
    ),
    Breakage("ragged-vectors-accepted", "if (lengths != width).any():", "if False:", f"{VECTOR_FILES} -k unequal"),
    Breakage(
        "split-of-two-spellings-halved",
        "chosen[split] = chosen.get(split, False) | pc.equal(",
        "chosen[split] = pc.equal(",
        f"{VECTOR_FILES} -k splits",
    ),
    Breakage(
        "classes-of-one-split",
        "classes = read_classes(_files(splits.values()), self",
        "classes = read_classes(_files([splits[wanted]]), self",
        f"{VECTOR_FILES} -k all_splits",
    ),
    Breakage(
        "embed-labels-by-path",
        "named = source.class_names if number == 0 else groups",
        "named = groups",
        f"{VECTORS} -k embed_writes",
    ),
    Breakage("transform-not-seeded", "np.random.seed(seed % 2**32)", "pass", f"{DOORS} -k workers"),
    Breakage(
        "views-of-a-data-set-alike",
        "seed_of(seed, epoch, view, row)",
        "seed_of(seed, epoch, 0, row)",
        f"{DOORS} -k workers",
    ),
    Breakage("generators-not-given-back", "random.setstate(before[0])", "pass", f"{DOORS} -k workers"),
    Breakage("weights-that-lack-tensors-accepted", "if absent or unlike:", "if unlike:", f"{DOORS} -k accounted"),
    Breakage(
        "folder-before-the-weights-are-read",
        "held.enter_context(new_run(folder, recipe))",
        "pass",
        f"{DOORS} -k command_line",
    ),
    Breakage(
        "network-trained-as-a-copy",
        "backbone = recipe.model.build(shape) if brought is None else brought",
        'backbone = __import__("copy").deepcopy(brought) if brought is not None else recipe.model.build(shape)',
        f"{DOORS} -k everything",
    ),
    Breakage(
        "own-ranks-ignored",
        "if brought.rank_source is not None:\n        return brought.rank_source",
        "if False:\n        return None",
        f"{DOORS} -k ranks_of",
    ),
    Breakage(
        "section-that-does-nothing-accepted",
        "if name not in self.method.uses and getattr(self, name) is not None:",
        "if False:",
        "tests/train/test_combinations.py -k cross-entropy",
    ),
    Breakage(
        "ranks-by-sample-go-by-class",
        'step.classes if self.rank_source.by == "class" else step.ids',
        "step.classes",
        "tests/train/test_combinations.py -k remembers",
    ),
    Breakage(
        "trained-ranks-not-judged",
        "rank_source=None if self.on else run.class_ranks",
        "rank_source=None if self.run else run.class_ranks",
        f"{DOORS} -k ranks_of",
    ),
    Breakage("copies-not-averaged", "source.copies, -1).mean(dim=1)", "source.copies, -1)[:, 0]", VIDEOS),
    Breakage(
        "versions-in-one-table-not-told",
        'if len({version.partition(".dev")[0] for version in by_version}) < 2:',
        "if True:",
        "tests/unit/test_tables.py -k different_versions",
    ),
    Breakage(
        "phones-photographs-passed-over",
        "known = SUFFIXES | UNREAD",
        "known = SUFFIXES",
        "tests/unit/test_unreadable.py -k not_read",
    ),
    Breakage(
        "semicolons-not-seen",
        """(mark for mark in ",;\\t" if mark in header)""",
        """(mark for mark in "," if mark in header)""",
        "tests/unit/test_taxonomy.py -k no_commas",
    ),
    Breakage(
        "epochs-of-one-step-take-no-time",
        "max(state.steps_per_epoch, MEASURED_STEPS)",
        "state.steps_per_epoch",
        "tests/train/test_settings.py -k one_step",
    ),
    Breakage(
        "short-runs-have-two-lines",
        "max(1, min(LONGEST_GAP, stop // LINES))",
        "LONGEST_GAP",
        "tests/train/test_settings.py -k short_run",
    ),
    Breakage(
        "groups-named-twice",
        """part.removeprefix(f"{'/'.join(parts)}/")""",
        "part",
        "tests/unit/test_vector_files.py -k say_nothing_twice",
    ),
    Breakage(
        "report-shows-another-image-of-the-name",
        "if others or self.names is None",
        "if self.names is None",
        "tests/unit/test_report.py -k one_by_one",
    ),
    Breakage(
        "content-not-in-the-fingerprint",
        '{"images": [[self.name(row), content] for row, content in enumerate(known)]}',
        '{"images": [self.name(row) for row in range(len(self))]}',
        "tests/unit/test_images.py -k names_and_content",
    ),
    Breakage(
        "a-file-written-again-is-believed",
        "entry is not None and entry[:-1] == _state(path)",
        "entry is not None and entry[0] == _state(path)[0]",
        "tests/unit/test_files.py -k until_size_or_time",
    ),
    Breakage(
        "report-of-changed-data",
        "if source.fingerprint == self.fingerprint:",
        "if True:",
        "tests/unit/test_report.py -k changed",
    ),
    # Pretrained networks, and features of them.
    Breakage(
        "finetuned-without-dropout", "self.train()  # a network", "self.eval()  # a network", f"{PRETRAINED} -k draws"
    ),
    Breakage(
        "network-at-the-rate-of-its-head",
        '"share": settings.backbone_lr / settings.lr}',
        '"share": 1.0}',
        f"{PRETRAINED} -k rate_of_its_own",
    ),
    Breakage(
        "standardised-by-what-is-held-out",
        "parts.trained.plain(torch.arange(len(parts.trained)))",
        "parts.source.plain(torch.arange(len(parts.source)))",
        f"{PRETRAINED} -k planned",
    ),
    Breakage("terms-without-a-rank", "return self.terms[:ranks]", "return self.terms", f"{PRETRAINED} -k take_no_part"),
    Breakage(
        "two-heads-share-ranks",
        "within(step, [view[head] for view in both], step.classes, source, self.runtime)",
        "within(step, [view[head] for view in both], step.classes, self.sources[0], self.runtime)",
        f"{PRETRAINED} -k two_heads",
    ),
    Breakage(
        "padding-is-averaged",
        'mask = batch["attention_mask"]',
        'mask = torch.ones_like(batch["attention_mask"])',
        f"{NETWORKS} -k alone",
    ),
    Breakage(
        "prompts-forgotten",
        "return _tokens(model, texts, prompt, cut=cut)",
        'return _tokens(model, texts, "", cut=cut)',
        f"{NETWORKS} -k prompts",
    ),
    Breakage(
        "a-tokeniser-without-words",
        'if not words - {"", *tokeniser.all_special_tokens}:',
        "if not words:",
        f"{NETWORKS} -k without_a_tokeniser",
    ),
    Breakage(
        "a-text-that-just-fits-is-cut",
        "sum(len(ids) > self.longest for ids",
        "sum(len(ids) >= self.longest for ids",
        f"{NETWORKS} -k too_long",
    ),
    Breakage(
        "features-of-other-weights",
        "network=self.network.identity, samples=",
        'network="", samples=',
        f"{FEATURES} -k weights",
    ),
    Breakage(
        "facts-of-other-weights",
        "fingerprint_of(files=named, versions",
        "fingerprint_of(files=sorted(named), versions",
        f"{FEATURES} -k weights_change",
    ),
    Breakage(
        "lengths-by-the-network-alone",
        "fingerprint_of(lengths=self.fingerprint) if self.knows_content",
        "None if self.knows_content",
        f"{FEATURES} -k files_change",
    ),
    Breakage("features-of-another-size", "seen=self.seen, **fixed", "seen={}, **fixed", f"{FEATURES} -k size"),
    Breakage("fixed-views-are-one", "[view - 1], seed=self.seed", "[0], seed=self.seed", f"{FEATURES} -k fixed"),
    Breakage(
        "texts-in-any-order",
        "if lengths is None else lengths.argsort(stable=True)",
        "if lengths is None else torch.arange(len(self))",
        f"{FEATURES} -k padded",
    ),
    Breakage(
        "noise-without-end",
        "torch.erfinv(2 * drawn[:, :dim] - 1 + 2.0**-24)",
        "torch.erfinv(2 * (drawn[:, :dim] + 2.0**-25) - 1)",
        f"{FEATURES} -k ends",
    ),
    Breakage(
        "seal-of-tables-ignored",
        "if not whole:\n        raise _damaged",
        "if False:\n        raise _damaged",
        f"{SEALED} -k flipped",
    ),
    Breakage("column-of-tables-unchecked", "or _digest(self._read) != wanted[self._group]", "", f"{SEALED} -k however"),
    Breakage("seal-out-of-place", "if KEY in _footer(path):", "if False:", f"{SEALED} -k out_of_place"),
    Breakage("text-of-tables-unchecked", "seal_of(file, path).check(table)", "", f"{SEALED} -k text_in"),
    Breakage(
        "damaged-part-used",
        "file.is_file() and _is_whole(file, say)",
        "file.is_file()",
        f"{VECTORS} -k interrupted_index",
    ),
    Breakage(
        "index-vectors-unchecked",
        "            checked.add(batch.column(0))\n            yield",
        "            yield",
        f"{VECTORS} -k not_searched",
    ),
    Breakage("unreadable-is-gone", "if self._data_is_gone():", "if True:", f"{VECTORS} -k is_not_gone"),
    Breakage(
        "other-kinds-of-weights", "_kind(tensor) != _kind(wanted[each])", "False", f"{CHECKPOINTS} -k fit_the_run"
    ),
    Breakage(
        "other-facts-of-a-run", "if saved.get(key, value) != value:", "if False:", f"{CHECKPOINTS} -k fit_the_run"
    ),
    Breakage("unknown-module", "saved.keys() - WANTED.keys() - modules", "set()", f"{CHECKPOINTS} -k fit_the_run"),
    Breakage("half-a-line", "if within:", "if False:", f"{CHECKPOINTS} -k fit_the_run"),
    Breakage(
        "excluded-nan-is-harm",
        "if harm and not _without",
        "if harm or not _without",
        "tests/unit/test_loss_numerics.py -k everywhere",
    ),
    Breakage(
        "inode-ignored", ", status.st_ctime_ns, status.st_ino", ", 0, 0", "tests/unit/test_files.py -k until_size"
    ),
    Breakage(
        "note-made-anew",
        "        if goes_on:\n            raise DataError",
        "        if False:\n            raise DataError",
        f"{RESUME} -k copy_of_the_data",
    ),
    Breakage(
        "usr1-kills-a-table",
        'for name in NAMES if name != "SIGINT"',
        'for name in NAMES[:3] if name != "SIGINT"',
        "tests/recipes/test_reproduce.py -k whatever_asks",
    ),
    Breakage(
        "squares-overflow",
        "2.0 ** -math.frexp(float(vectors.abs().max()))[1] if",
        "1.0 if",
        "tests/unit/test_positions.py -k any_size",
    ),
    Breakage(
        "refused-image-is-damaged",
        'raise NotGivenError(\n                f"{self._name} cannot be read:',
        'raise DataError(\n                f"{self._name} cannot be read:',
        "tests/unit/test_unreadable.py -k does_not_give",
    ),
    Breakage(
        "refused-video-is-damaged",
        "    with suppress(DataError):\n        return inspect(path)\n",
        "",
        "tests/unit/test_videos.py -k did_not_give",
    ),
    Breakage(
        "missing-vectors-are-made-up",
        "        if missing:\n            raise DataError(\n",
        "        if False:\n            raise DataError(\n",
        "tests/unit/test_findings.py",
    ),
    Breakage(
        "text-of-parquet-unchecked",
        "    table.validate(full=True)\n",
        "",
        "tests/unit/test_hostile_files.py -k 'text_of_other or two_types'",
    ),
    Breakage(
        "results-beside-figures-of-other-samples",
        'if results.get("data", judged) != judged:',
        "if False:",
        f"{IDENTITY} -k table_compares",
    ),
    Breakage(
        "log-blocks-its-folder",
        "BEGUN = {RECIPE, ENVIRONMENT, METRICS, *LOGS}",
        "BEGUN = {RECIPE, ENVIRONMENT, METRICS}",
        "tests/train/test_folders.py -k saved_nothing",
    ),
    Breakage(
        "no-recipe-is-a-run",
        "if not there or (RECIPE in there and there <= BEGUN and",
        "if there <= BEGUN and (RECIPE not in there or",
        "tests/train/test_folders.py -k nothing_is_put",
    ),
    Breakage(
        "half-a-line-is-damage",
        'path.read_bytes().rpartition(b"\\n")[0]',
        "path.read_bytes()",
        "tests/unit/test_analysis.py -k last_whole_line",
    ),
    Breakage(
        "unsigned-integers-as-they-are",
        "return _signed(values, name) if values.dtype in STORED else values",
        "return values",
        "tests/unit/test_inputs.py -k unsigned",
    ),
)


def places(find: str, root: Path = ROOT) -> list[tuple[Path, int]]:
    """The files below src/rince that hold the text, and how often."""
    return [(path, text.count(find)) for path, text in _source(root) if find in text]


@cache
def _source(root: Path) -> list[tuple[Path, str]]:
    """The files of a tree that is whole: what is broken in it is mended again before the next look."""
    files = (path for path in sorted((root / "src" / "rince").rglob("*")) if path.suffix in TEXTS)
    return [(path, path.read_text(encoding="utf-8")) for path in files]


def problem(breakage: Breakage, root: Path = ROOT) -> str | None:
    """Why a breakage cannot be applied, or None."""
    found = places(breakage.find, root)
    if sum(count for _, count in found) != 1:
        where = ", ".join(f"{path.relative_to(root)} ({count})" for path, count in found) or "nowhere"
        return f"its text must stand in one place, and stands in: {where}"
    if breakage.find == breakage.replace:
        return "it changes nothing"
    return None


def main(names: list[str]) -> int:
    """Applies the breakages of these names, or all of them; 0 if each was noticed."""
    unknown = set(names) - {breakage.name for breakage in BREAKAGES}
    if unknown:
        print(f"there is no breakage called {', '.join(sorted(unknown))}")
        return 2
    chosen = [breakage for breakage in BREAKAGES if not names or breakage.name in names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rince-breakages-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(_copy(Path(folder) / str(number)))
        print(f"the tests of {len(chosen)} breakages, with nothing broken …", flush=True)
        code, output = _pytest(Path(folder) / "0", _all_tests(chosen))
        if code:
            print(output, "these fail with nothing broken; mend that first", sep="\n")
            return 1
        survived = 0
        for breakage, (verdict, by, seconds) in zip(chosen, _each(pool, copies, _broken, chosen), strict=True):
            survived += verdict != "died"
            print(f"{verdict:8}  {breakage.name:36} {seconds:4.0f} s  {by}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(chosen) - survived} of {len(chosen)} breakages died, in {minutes:.1f} minutes")
    return 1 if survived else 0


def _each(pool: ThreadPoolExecutor, copies: "SimpleQueue[Path]", work, items) -> Iterator:  # type: ignore[no-untyped-def]
    """`work(copy, item)` of every item, in their order, each copy used by one at a time."""

    def with_copy(item):  # type: ignore[no-untyped-def]
        copy = copies.get()
        try:
            return work(copy, item)
        finally:
            copies.put(copy)

    return pool.map(with_copy, items)


def _copy(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("_build"))
        else:
            shutil.copy2(source, target / name)
    return target


def _all_tests(breakages: list[Breakage]) -> str:
    """Arguments for all of their tests at once, and for some others whose names are alike."""
    files, names = set(), set()
    for breakage in breakages:
        words = shlex.split(breakage.tests)
        own = [word for word in words if word.startswith("tests/")]
        files.update(own)
        names.update([words[words.index("-k") + 1]] if "-k" in words else [Path(file).name for file in own])
    chosen = " or ".join(f"({name})" for name in sorted(names))
    return f"--numprocesses={AT_ONCE} {' '.join(sorted(files))} -k {shlex.quote(chosen)}"


def _broken(copy: Path, breakage: Breakage) -> tuple[str, str, float]:
    """What became of a breakage, and what noticed it."""
    why = problem(breakage, copy)
    if why:
        return "WRONG", why, 0.0
    (path, _), *_ = places(breakage.find, copy)
    whole, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(whole.replace(breakage.find, breakage.replace), encoding="utf-8")
    began = time.monotonic()
    try:
        code, output = _pytest(copy, breakage.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled of it is valid again
    seconds = time.monotonic() - began
    if code == 0:
        return "SURVIVED", f"pytest {breakage.tests}", seconds
    failed = re.search(r"^FAILED (.*?)(?: - .*)?$", output, re.MULTILINE)
    if code != 1 or failed is None:  # a test that cannot even be collected has not noticed anything
        return "WRONG", f"pytest {breakage.tests} ended with {code}: {output.strip().splitlines()[-1]}", seconds
    return "died", failed[1], seconds


def _pytest(copy: Path, tests: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short", *shlex.split(tests)]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
