"""A study as data: what is trained, on what, how it is judged. Read from TOML, checked before anything runs."""

from __future__ import annotations

import itertools
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from farspan.models.configuration import LAYER_RULES, check_rule
from farspan.patterns import rules
from farspan.patterns.matching import match_spec
from farspan.studies import schedule_file
from farspan.training import Recipe

_SHIPPED = resources.files("farspan.studies") / "shipped"
FROM_FILE = "schedule file"
"""The pattern that an arm goes by whose rules come from a file."""

Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shape(_Table):
    """The size of the model: the arguments of `FarspanConfig` that a study may set."""

    hidden_size: int = Field(512, ge=1)
    layers: int = Field(16, ge=1)
    heads: int = Field(8, ge=1)
    kv_heads: int = Field(2, ge=1)
    head_dim: int | None = Field(None, ge=2)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads = {self.kv_heads}, got {self.heads}")
        if self.head_dim is None and self.hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {self.heads}, got {self.hidden_size}")
        return self


class Data(_Table):
    """The text of a language study: see `farspan.data.prepare`."""

    corpus: str = "python-stdlib"
    vocab_size: int = Field(32768, ge=257)
    heldout_fraction: float = Field(0.1, gt=0, lt=1)
    max_train_tokens: int | None = Field(None, ge=1)
    max_heldout_tokens: int | None = Field(None, ge=2)


class Evaluation(_Table):
    """How the models of a language study are judged."""

    tokens: int = Field(524_289, ge=2, description="held-out tokens scored, from the start of the held-out stream")
    multiples: list[int] = Field([1, 2, 4, 8], description="evaluation lengths as multiples of the training length")
    protocols: list[Literal["disjoint", "sliding"]] = Field(["disjoint", "sliding"], min_length=1)

    @field_validator("multiples")
    @classmethod
    def _positive(cls, value: list[int]) -> list[int]:
        if not value or min(value) < 1 or len(set(value)) < len(value):
            raise ValueError(f"multiples must be one or more different integers >= 1, got {value}")
        return value


class Arm(_Table):
    """One thing to compare. `matrix` lists values of rule arguments; the arm then stands for all their combinations.

    A rule `{ file = "designed.json" }` takes its layers from a schedule file, by its path from the study file. The file
    is read here, once: from then on the rule holds what it said, and the SHA-256 of it.
    """

    label: str = Field(min_length=1, description="unique; {name} is replaced by the value of a matrix axis")
    rule: dict[str, Any]
    matrix: dict[str, list[Any]] = {}
    seeds: list[Seed] | None = Field(None, min_length=1, description="instead of the study's")
    micro_batch: int | None = Field(None, ge=1, description="instead of the recipe's")

    @field_validator("rule")
    @classmethod
    def _read(cls, rule: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "file" not in rule:
            return rule
        if others := sorted(set(rule) - {"file"}):
            raise ValueError(f"a rule from a file takes nothing else, got {', '.join(others)}")
        if not isinstance(rule["file"], str):
            raise ValueError(f"file must be the path of a schedule file, got {rule['file']!r}")
        folder = (info.context or {}).get("folder", Path())
        content, digest = schedule_file.read(folder / rule["file"])
        return {"pattern": FROM_FILE, "file": rule["file"], "sha256": digest, "rules": content.rules}

    def expanded(self) -> list[Arm]:
        """The arms this one stands for."""
        if empty := [axis for axis, values in self.matrix.items() if not values]:
            raise ValueError(f"arm {self.label!r}: matrix.{empty[0]} must list at least one value, got none")
        axes = [[(axis, value) for value in values] for axis, values in self.matrix.items()]
        unknown = {name for _, name, _, _ in Formatter().parse(self.label) if name is not None} - set(self.matrix)
        if unknown:
            raise ValueError(f"arm {self.label!r}: {{{', '.join(unknown)}}} is not an axis of its matrix")
        return [
            self.model_copy(
                update={
                    "label": self.label.format_map(dict(chosen)),
                    "rule": {**self.rule, **dict(chosen)},
                    "matrix": {},
                }
            )
            for chosen in itertools.product(*axes)
        ]


class Language(_Table):
    """Language models trained alike and tested beyond their training length."""

    model: Shape = Shape()
    data: Data = Data()
    recipe: Recipe = Recipe()
    evaluation: Evaluation = Evaluation()
    arms: list[Arm] = Field(min_length=1)

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        longest = self.recipe.length * max(self.evaluation.multiples)
        if self.evaluation.tokens < longest:
            got = self.evaluation.tokens
            raise ValueError(f"evaluation.tokens must be at least the longest evaluation length, {longest}, got {got}")
        return self


class Copy(_Table):
    """The copy probe: one small model per arm and distance (or pair of distances, for the marked copy)."""

    model: Shape
    recipe: Recipe
    alphabet: int = Field(16, ge=2)
    samples: int = Field(128, ge=1, description="fresh sequences that accuracy is measured on")
    distances: list[int] = []
    marked: list[tuple[int, int]] = Field([], description="pairs of distances of the marked copy")
    arms: list[Arm] = Field(min_length=1)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.distances and not self.marked:
            raise ValueError("distances or marked must name something to copy from, got neither")
        for distance in [*self.distances, *itertools.chain.from_iterable(self.marked)]:
            if not 1 <= distance < self.recipe.length:
                raise ValueError(
                    f"distances must lie in 1..{self.recipe.length - 1} (below recipe.length), got {distance}"
                )
        return self


class Study(_Table):
    """A study file. At least one of `language` and `copy` is there."""

    name: str = Field(pattern=r"^\w[\w.+-]*$", description="also the name of its folder")
    title: str
    description: str = ""
    seeds: list[Seed] = Field([42], min_length=1)
    threads: int | None = Field(None, ge=1, description="CPU threads of a cell; fixed, because it decides rounding")
    language: Language | None = None
    copy_: Copy | None = Field(None, alias="copy")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.language is None and self.copy_ is None:
            raise ValueError("a study needs a [language] or a [copy] table, got neither")
        self.cells()
        return self

    def cells(self) -> list[Cell]:
        """Every model the study trains, in the order of the file."""
        cells: list[Cell] = []
        for task in (self.language, self.copy_):
            if task is None:
                continue
            arms = [arm for written in task.arms for arm in written.expanded()]
            labels = [arm.label for arm in arms]
            for label in labels:
                if labels.count(label) > 1:
                    raise ValueError(f"arms must have unique labels, got {label!r} more than once")
            by_label = {arm.label: arm for arm in arms}
            for arm in arms:
                layers = _layer_rules(arm, by_label, task.model, task.recipe.length)
                for seed in arm.seeds or self.seeds:
                    cells += _cells_of(task, arm, layers, seed, self.threads)
        by_id: dict[str, Cell] = {}
        for cell in cells:
            if cell.id in by_id:
                raise ValueError(
                    f"every cell needs a folder of its own, got {cell.id!r} twice, for {by_id[cell.id].label!r} and"
                    f" {cell.label!r}: change a label, or a seed or distance that stands there twice"
                )
            by_id[cell.id] = cell
        return cells


class Cell(_Table):
    """One model to train: a study's arm, seed and task, with every rule written out."""

    id: str
    label: str
    group: dict[str, Any]
    seed: int
    task: Literal["language", "shift-copy", "marked-copy"]
    threads: int | None
    model: Shape
    rules: list[dict[str, Any]]
    recipe: Recipe
    data: Data | None = None
    evaluation: Evaluation | None = None
    alphabet: int | None = None
    samples: int | None = None
    distances: list[int] = []


def _cells_of(
    task: Language | Copy, arm: Arm, layers: list[dict[str, Any]], seed: int, threads: int | None
) -> list[Cell]:
    recipe = (
        task.recipe
        if arm.micro_batch is None
        else Recipe(**{**task.recipe.model_dump(), "micro_batch": arm.micro_batch})
    )
    name = "".join(c if c.isalnum() else "-" for c in arm.label.lower())
    shared: dict[str, Any] = {
        "label": arm.label,
        "group": {key: value for key, value in arm.rule.items() if key != "rules"},
        "seed": seed,
        "threads": threads,
        "model": task.model,
        "rules": layers,
        "recipe": recipe,
    }
    if isinstance(task, Language):
        return [Cell(id=f"{name}-seed{seed}", task="language", data=task.data, evaluation=task.evaluation, **shared)]
    shared |= {"alphabet": task.alphabet, "samples": task.samples}
    shift = [
        Cell(id=f"copy-{name}-d{d}-seed{seed}", task="shift-copy", distances=[d], **shared) for d in task.distances
    ]
    marked = [
        Cell(id=f"marked-{name}-d{a}-{b}-seed{seed}", task="marked-copy", distances=[a, b], **shared)
        for a, b in task.marked
    ]
    return shift + marked


def _layer_rules(arm: Arm, arms: dict[str, Arm], model: Shape, length: int) -> list[dict[str, Any]]:
    """The rule of every layer. `schedule` gives each its alpha; `match` sets the window by another arm's pairs or
    reach."""
    rule = dict(arm.rule)
    try:
        if "file" in rule:
            return _rules_of_file(rule, model)
        schedule = rule.pop("schedule", None)
        bounds: dict[str, float] = {key: rule.pop(key) for key in ("low", "high", "seed") if schedule and key in rule}
        if "match" in rule:
            return _matched(rule, schedule, bounds, arms, model, length)
        if schedule is not None and rule.get("pattern") in LAYER_RULES:
            raise ValueError(
                f"a {rule['pattern']} rule has no alpha that a schedule could set, got schedule = {schedule!r}"
            )
        if rule.get("pattern") in LAYER_RULES:
            written = [rule] * model.layers
        else:
            written = rules.over_depth(rule, model.layers, model.heads, schedule, **bounds)
        for one in written:
            check_rule(one, model.heads, model.kv_heads)
        return [dict(one) for one in written]
    except (TypeError, ValueError) as error:
        raise ValueError(f"arm {arm.label!r}: {error}") from None


def _rules_of_file(rule: dict[str, Any], model: Shape) -> list[dict[str, Any]]:
    if "rules" not in rule:
        raise ValueError("file must stand in the arm's rule, got it in a matrix")
    written: list[dict[str, Any]] = rule["rules"]
    if len(written) != model.layers:
        raise ValueError(f"the model has {model.layers} layers, but {rule['file']} has rules for {len(written)}")
    for layer, one in enumerate(written):
        try:
            check_rule(one, model.heads, model.kv_heads)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{rule['file']}, rules[{layer}]: {error}") from None
    return [dict(one) for one in written]


def _matched(
    rule: dict[str, Any],
    schedule: str | None,
    bounds: dict[str, float],
    arms: dict[str, Arm],
    model: Shape,
    length: int,
) -> list[dict[str, Any]]:
    target, by, family = rule.pop("match"), rule.pop("by", "pairs"), rule.pop("pattern", None)
    if unknown := set(rule) - {"reach", "seed"}:
        raise ValueError(
            f"a matched rule takes match, by, pattern, schedule, reach and seed, got {', '.join(sorted(unknown))}"
        )
    if not isinstance(target, str) or target not in arms:
        raise ValueError(f"match must name another arm ({', '.join(arms)}), got {target!r}")
    if "match" in arms[target].rule:
        raise ValueError(f"match must name an arm with a rule of its own, got {target!r}, which is matched itself")
    if schedule is not None and schedule not in rules.SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(rules.SCHEDULES)}, got {schedule!r}")
    if arms[target].rule.get("pattern") in LAYER_RULES:
        raise ValueError(f"match must name an arm with a static pattern, got {target!r}")
    alphas = [1.0] * model.layers if schedule is None else rules.SCHEDULES[schedule](model.layers, **bounds)
    others = _layer_rules(arms[target], arms, model, length)
    return [
        match_spec(rules.build(other, length), by, family, length=length, alpha=alpha, layer=layer, **rule)
        for layer, (other, alpha) in enumerate(zip(others, alphas, strict=True))
    ]


def shipped() -> list[str]:
    """Names of the studies that come with farspan."""
    return sorted(entry.name.removesuffix(".toml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".toml"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from None


def load(study: str | Path) -> Study:
    """Reads a study: the name of a shipped one, or the path of a TOML file.

    Raises:
        ValueError: there is none, or the file is wrong; the message names file, key and what is allowed.
    """
    if str(study) in shipped():
        name, text, where = str(study), (_SHIPPED / f"{study}.toml").read_text(), f"{study}.toml"
        folder: Traversable | Path = _SHIPPED
    elif Path(study).suffix == ".toml" and Path(study).is_file():
        name, text, where = Path(study).stem, _read(Path(study)), str(study)
        folder = Path(study).parent
    else:
        raise ValueError(f"study must be one of {', '.join(shipped())} or a TOML file that exists, got {str(study)!r}")
    try:
        table = tomllib.loads(text)
        if "name" in table:
            raise ValueError(f"{where}: name is the file's own, got name = {table['name']!r}")
        return Study.model_validate({"name": name, **table}, context={"folder": folder})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise ValueError(f"{where}: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """The first thing a study got wrong: its key, what is wrong, and for an unknown key the ones there are."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = Study
        for part in path[:-1]:
            field = model.model_fields.get("copy_" if part == "copy" else part)
            kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
            model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
        message = f"unknown key; known are {', '.join(sorted(model.model_fields))}"
    return f"{'.'.join(path)}: {message}" if path else message
