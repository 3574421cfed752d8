"""The public names: the same in all their lists, each there, and seen by type checkers."""

import ast
import dataclasses
import pathlib
import subprocess
import sys
import typing

import pytest

import bert_jax
import bert_jax.config

SOURCE = pathlib.Path(bert_jax.__file__)


def typed_names() -> dict[str, str]:
    """What the TYPE_CHECKING block of the package imports: {public name: module, and its name there if different}."""
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}".removesuffix(f":{alias.asname or alias.name}")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_lists_of_public_names_agree():
    homes = {name: f"bert_jax.{home}" for name, home in bert_jax._HOMES.items()}
    assert typed_names() == homes
    assert bert_jax.__all__ == sorted(homes)
    assert {*bert_jax.__all__} <= {*dir(bert_jax)}


@pytest.mark.parametrize("name", bert_jax.__all__)
def test_each_public_name_is_there_and_explained(name):
    value = getattr(bert_jax, name)
    assert value.__doc__ and value.__module__.startswith("bert_jax.")


def held(kind) -> set[type]:
    """The dataclasses that a dataclass holds, directly, in tuples or in one another."""
    found = set()
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                found |= {part, *held(part)}
    return found


def test_every_part_of_a_configuration_is_public_and_documented():
    parts = held(bert_jax.Config)
    assert {bert_jax.ModelConfig, bert_jax.PhaseConfig, bert_jax.DistillationConfig} <= parts
    reference = (SOURCE.parents[1] / "docs" / "reference" / "configuration.md").read_text().splitlines()
    for part in parts:
        assert getattr(bert_jax, part.__name__) is part and getattr(bert_jax.config, part.__name__) is part
        assert f"::: bert_jax.{part.__name__}" in reference


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'pretrian'"):
        bert_jax.pretrian


def test_importing_the_package_loads_no_library():
    seen = (
        "import sys, bert_jax; assert 'analysis' in dir(bert_jax); "
        "print(sorted({'jax', 'numpy', 'flax', 'tensorflow', 'tyro'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_type_checker_sees_the_public_names(tmp_path):
    pytest.importorskip("basedpyright", reason="the type checker is of the extra `lint`")
    (tmp_path / "uses.py").write_text(
        "import bert_jax\n"
        + "".join(f"bert_jax.{name}\n" for name in bert_jax.__all__)
        + "bert_jax.Config(sed=1)\nbert_jax.pretrian\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.basedpyright]\ntypeCheckingMode = "standard"\nextraPaths = ["{SOURCE.parents[1]}"]\n'
        'reportUnusedExpression = "none"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2, done.stdout
    assert '"sed"' in errors[0] and '"pretrian"' in errors[1]


def test_the_citation_names_the_version():
    assert f"\nversion: {bert_jax.__version__}\n" in (SOURCE.parents[1] / "CITATION.cff").read_text()
