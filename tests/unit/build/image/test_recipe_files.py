"""``files:`` of the recipe that docs/sites/perlmutter.md shows for a clone of Synapse."""

from __future__ import annotations

import re
from pathlib import Path

from builder.build.image.recipe_files import recipe_entries
from builder.lock.config.recipe import load_recipe

PAGE = Path(__file__).parents[4] / "docs/sites/perlmutter.md"
#: Files of a clone of Synapse, 2026-07-27, and one that newer ones may have. The experiments are submodules.
CLONE = (
    *("ml/environment.yml", "ml/train_model.py", "ml/Neural_Net_Classes.py", "ml/training_pm.sbatch"),
    "mlflow_utils.py",
    *("experiments/ip2/config.yaml", "experiments/ip2/notes.md", "experiments/ip2/data/points.csv"),
)


def test_synapse(tmp_path: Path) -> None:
    """The image has the programs and the config of each experiment, and its command names one of them."""
    blocks = re.findall(r"```(?:yaml)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    recipe_text = next(block for block in blocks if "train_model.py" in block)
    ignore_text = next(block for block in blocks if block.startswith("/experiments"))
    for name in CLONE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("channels: [conda-forge]\ndependencies: [python]\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/synapse-ml.yaml").write_text(recipe_text)
    (tmp_path / ".builderignore").write_text(ignore_text)
    recipe = load_recipe("synapse-ml", tmp_path)
    files = {entry.path for entry in recipe_entries(recipe) if "." in Path(entry.path).name}
    assert files == {
        "app/ml/train_model.py",
        "app/ml/Neural_Net_Classes.py",
        "app/mlflow_utils.py",
        "app/experiments/ip2/config.yaml",
    }
    assert recipe.workdir == "/app/ml" and f"app/ml/{recipe.cmd[-1]}" in files
