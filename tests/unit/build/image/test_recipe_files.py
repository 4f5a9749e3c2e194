"""``files:`` of the recipe of examples/synapse in a clone of Synapse."""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.build.image.recipe_files import recipe_entries
from builder.lock.config.recipe import load_recipe

EXAMPLE = Path(__file__).parents[4] / "examples/synapse"
#: Files of a clone of Synapse, 2026-07-27, and one that newer ones may have. The experiments are submodules.
CLONE = (
    *("ml/environment.yml", "ml/train_model.py", "ml/Neural_Net_Classes.py", "ml/training_pm.sbatch"),
    "mlflow_utils.py",
    *("experiments/ip2/config.yaml", "experiments/ip2/notes.md", "experiments/ip2/data/points.csv"),
)


def test_synapse(tmp_path: Path) -> None:
    """The image has the programs and the config of each experiment, and its command names one of them."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    for name in CLONE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("channels: [conda-forge]\ndependencies: [python]\n")
    recipe = load_recipe("synapse-ml", tmp_path)
    files = {entry.path for entry in recipe_entries(recipe) if "." in Path(entry.path).name}
    assert files == {
        "app/ml/train_model.py",
        "app/ml/Neural_Net_Classes.py",
        "app/mlflow_utils.py",
        "app/experiments/ip2/config.yaml",
    }
    assert recipe.workdir == "/app/ml" and f"app/ml/{recipe.cmd[-1]}" in files
