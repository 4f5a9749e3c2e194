"""Images named by references, and SIFs converted to OCI images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.image.convert import image_tree, open_image, sif_to_oci, split_image
from builder.oci.layout import write_layout
from builder.sif.read import open_sif, read_sif
from builder.sif.singularity import FOLDER
from builder.sif.write import Layout
from builder.trees.compare import compare_trees
from tests.support.sif_place import Place, partition_names, without_descriptors


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_split_image() -> None:
    """A file that ends in .sif needs no kind; a name of no kind is an error."""
    assert split_image("a/b.sif") == ("sif", "a/b.sif")
    assert split_image("oci:a.sif") == ("oci", "a.sif")
    with pytest.raises(UsageError, match="'somewhere' does not name an image"):
        split_image("somewhere")


@pytest.mark.parametrize("layout", ["flat", "layered"])
def test_convert_and_back(place: Place, layout: Layout) -> None:
    """A SIF becomes an OCI image with the same files and config, and a SIF again."""
    image = place.image(env={"A": "b c"}, workdir="/data")
    sif = place.sif(image, layout=layout)
    back = sif_to_oci(sif, place.settings, place.store)
    assert compare_trees(image_tree(image, place.store), image_tree(back, place.store)) == []
    assert not any(p.startswith(".singularity.d") for p in image_tree(back, place.store))
    assert json.loads(back.config)["config"] == json.loads(image.config)["config"]
    assert len(back.layers) == len(partition_names(sif))
    assert sif_to_oci(sif, place.settings, place.store).digest == back.digest
    write_layout(back, place.folder / "layout", "t", place.store)
    opened = open_image(f"oci:{place.folder / 'layout'}:t", place.settings, place.store)
    assert opened.digest == back.digest
    again = place.sif(back, "again.sif", layout)
    assert compare_trees(image_tree(again, place.store), image_tree(sif, place.store)) == []


def test_sif_without_config(place: Place) -> None:
    """A SIF of another program keeps its scripts in the OCI image."""
    sif = place.sif(place.image())
    (place.folder / "foreign.sif").write_bytes(without_descriptors(sif.path.read_bytes()))
    image = sif_to_oci(open_sif(place.folder / "foreign.sif", place.store), place.settings, place.store)
    tree = image_tree(image, place.store)
    assert f"{FOLDER}/runscript" in tree
    assert json.loads(image.config)["config"]["Entrypoint"] == [f"/{FOLDER}/runscript"]


def test_sif_with_inner_config(place: Place) -> None:
    """Apptainer stores the inner part of a config under the same name: the scripts are needed then, too."""
    sif = place.sif(place.image())
    data = sif.path.read_bytes()
    stored = read_sif(sif.path).read("oci-config.json")
    assert stored is not None
    inner = b'{"Env":["A=1"]}'.ljust(len(stored))
    (place.folder / "foreign.sif").write_bytes(data.replace(stored, inner))
    image = sif_to_oci(open_sif(place.folder / "foreign.sif", place.store), place.settings, place.store)
    assert f"{FOLDER}/runscript" in image_tree(image, place.store)
    assert json.loads(image.config)["config"]["Entrypoint"] == [f"/{FOLDER}/runscript"]
