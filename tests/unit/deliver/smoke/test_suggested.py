"""What is tested in an image: the recipe's ``smoke``, or what the lock suggests."""

from __future__ import annotations

import pytest

from builder.bench.options import parse
from builder.core.model import LockedPackage
from builder.deliver.smoke.suggested import TORCH, SmokePlan, plan_of, plan_smoke
from builder.lock.config.smoketest import SmokeTest

AUTO = SmokeTest()


def package(name: str, *needs: str) -> LockedPackage:
    url = f"https://p.example/{name}-1-py3-none-any.whl"
    return LockedPackage(name, "1", "pip", "linux-64", url, "1" * 64, dependencies=dict.fromkeys(needs, ""))


@pytest.mark.parametrize(
    ("names", "framework"),
    [
        (["python", "pytorch", "jax"], "torch"),
        (["torch"], "torch"),
        (["tensorflow-cpu", "jax"], "tensorflow"),
        (["jax", "jaxlib"], "jax"),
    ],
)
def test_framework_of_the_lock(names: list[str], framework: str) -> None:
    assert plan_smoke(AUTO, [package(name) for name in names], names) == SmokePlan(framework)


def test_requested_packages() -> None:
    """Without a framework, the modules of what the environment asks for are imported."""
    packages = [package("scikit-learn", "numpy"), package("numpy"), package("python"), package("polars")]
    plan = plan_smoke(AUTO, packages, ["scikit-learn", "python", "polars", "pip"])
    assert plan == SmokePlan(packages=("polars", "scikit-learn")) and plan.title == "imports"
    assert plan_smoke(AUTO, packages, ()) == plan, "not known: what no other package needs"
    assert plan_smoke(AUTO, [package("python")], ["python"]).title == "python"


def test_recipe_first() -> None:
    """What the recipe says is all that is tested."""
    test = SmokeTest(imports=("a",), command=("b", "c d"), timeout=7)
    plan = plan_smoke(test, [package("torch")], ["torch"])
    assert plan == SmokePlan(imports=("a",), command=("b", "c d"), timeout_s=7)
    assert plan.title == "imports, own command"
    assert plan_smoke(SmokeTest(none="why"), [package("torch")], ()).none == "why"


def test_arguments() -> None:
    """The benchmark understands the options."""
    assert parse(TORCH.arguments()).framework == "torch"
    plan = SmokePlan("jax", ("a", "b.c"), ("scikit-learn",), ("x", "a b", '"'), 9)
    options = parse(plan.arguments())
    assert (options.framework, options.imports, options.packages) == ("jax", ["a", "b.c"], ["scikit-learn"])
    assert (options.command, options.command_timeout) == (["x", "a b", '"'], 9)
    assert parse(SmokePlan(imports=("a",)).arguments()).framework == "none"


def test_of_a_report() -> None:
    """A report says what was tested; older ones tested torch."""
    assert plan_of({}) == TORCH.to_json() == {"framework": "torch"}
    assert plan_of({"test": {"imports": ["a"]}}) == SmokePlan(imports=("a",)).to_json()
    assert SmokePlan(none="why").to_json() == {"none": "why"}
