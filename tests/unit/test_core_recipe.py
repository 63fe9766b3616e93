"""Recipes: presets, files, flags and settings; every misspelling is named."""

import pytest

from quantkit.core.recipe import Recipe, preset_names, preset_summary, resolve_recipe
from quantkit.errors import RecipeError, UsageError


def test_defaults_and_hash() -> None:
    recipe = resolve_recipe("m")
    assert recipe == Recipe(model="m")
    assert recipe.methods[0].name == "gptq"
    assert recipe.hash() == resolve_recipe("m").hash()
    assert recipe.hash() != resolve_recipe("m", overrides={"seed": 1}).hash()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_and_says_what_it_is(name: str) -> None:
    recipe = resolve_recipe("m", recipe=name)
    assert recipe.methods
    assert len(preset_summary(name)) > 20


def test_flags_go_before_the_file(tmp_path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "extends: gptq-w4\nscheme: w3a16-g64\nrules: ['down_proj=w8a16-g64']\n"
        "calibration: {num_samples: 7}\n"
    )
    recipe = resolve_recipe(
        "m",
        recipe=str(path),
        overrides={"bits": 4, "asym": True, "rules": ["lm_head=keep"], "seq_len": 99},
        settings=["damp=0.05", "calibration.seed=3"],
    )
    assert recipe.scheme == "w4a16-g64-asym"
    assert [(r.pattern, r.scheme) for r in recipe.rules] == [
        ("lm_head", "keep"),
        ("down_proj", "w8a16-g64"),
    ]
    assert recipe.calibration.num_samples == 7
    assert recipe.calibration.seq_len == 99
    assert recipe.calibration.seed == 3
    assert recipe.methods[0].options == {"damp": 0.05}
    assert recipe.output.format == "gptq"


@pytest.mark.parametrize(
    ("flags", "scheme"),
    [
        ({"bits": 3}, "w3a16"),
        ({"group_size": 64}, "w4a16-g64"),
        ({"group_size": -1}, "w4a16-grow"),
        ({"scheme": "w8a16-g32"}, "w8a16-g32"),
        ({"bits": 8, "group_size": 32, "asym": True}, "w8a16-g32-asym"),
    ],
)
def test_scheme_flags(flags, scheme) -> None:
    assert resolve_recipe("m", overrides=flags).scheme == scheme


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("shceme: w4a16\n", "shceme"),
        ("calibration: {num_smaples: 3}\n", "num_smaples"),
        ("scheme: w9a16\n", "w9a16"),
        ("rules: ['(=keep']\n", "regular expression"),
        ("rules: ['down_proj']\n", "REGEX=SCHEME"),
        ("calibration: {num_samples: 0}\n", "num_samples"),
        ("calibration: {num_samples: many}\n", "num_samples"),
        ("methods: [{gptq: {}, rtn: {}}]\n", "methods"),
        ("extends: no-such-preset\n", "no-such-preset"),
        ("[1, 2]\n", "mapping"),
        ("a: [\n", "YAML"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path, text, word) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises((RecipeError, UsageError)) as caught:
        resolve_recipe("m", recipe=str(path))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_near_names_are_suggested(tmp_path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("calibration: {num_smaples: 3}\n")
    with pytest.raises(RecipeError) as caught:
        resolve_recipe("m", recipe=str(path))
    assert "num_samples" in caught.value.hint
    with pytest.raises(RecipeError) as caught:
        resolve_recipe("m", recipe="gptq-w5")
    assert "gptq-w4" in caught.value.hint


def test_a_recipe_that_extends_itself(tmp_path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"extends: {path}\n")
    with pytest.raises(RecipeError, match="extends itself"):
        resolve_recipe("m", recipe=str(path))


def test_flags_that_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--scheme"):
        resolve_recipe("m", overrides={"scheme": "w4a16", "bits": 3})
    with pytest.raises(UsageError, match="KEY=VALUE"):
        resolve_recipe("m", settings=["damp"])
