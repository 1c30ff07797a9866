"""Five sets of MedMNIST v2: medical images of 28x28 pixels."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.finder import Finder, Needed
from unskew.data.files.numpy_files import load_npz_dataset
from unskew.data.sources.base import About, Source, sources

ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
    "pancreas", "spleen",
)  # fmt: skip


def _about(train: int, validation: int, test: int, classes: int, channels: int) -> About:
    counts = f"{train:,} train / {validation:,} validation / {test:,} test"
    return About(counts, classes, (channels, 28, 28), "https://medmnist.com", "CC BY 4.0")


def _file(name: str, md5: str) -> tuple[Needed, ...]:
    return (Needed(name, f"https://zenodo.org/records/10519652/files/{name}?download=1", checksum=f"md5:{md5}"),)


@dataclasses.dataclass(frozen=True)
class _MedMnist(Source):
    """One .npz with official training, validation and test samples."""

    use_validation_for_training: bool = param(
        default=False, doc="train on training and validation samples", source="FedSOL trains on both"
    )

    folders: ClassVar[tuple[str, ...]] = ("medmnist", "MedMNIST")
    classes: ClassVar[tuple[str, ...]]

    def load(self, find: Finder) -> Dataset:
        """The official splits; pixels are scaled to -1..1."""
        path = self.paths(find)[0]
        dataset = load_npz_dataset(self.name, path, self.classes)
        validation = dataset.validation
        if validation is None:
            raise InputError(f"{path}: expected the arrays val_images and val_labels; get the official file")
        if not self.use_validation_for_training:
            return dataset
        both = Samples(torch.cat([dataset.train.x, validation.x]), torch.cat([dataset.train.y, validation.y]))
        return dataclasses.replace(dataset, train=both, validation=None)


@sources.register("bloodmnist")
class BloodMnist(_MedMnist):
    """Blood cells under a microscope, 28x28 colour."""

    about = _about(11_959, 1_712, 3_421, 8, 3)
    files = _file("bloodmnist.npz", "7053d0359d879ad8a5505303e11de1dc")
    classes = (
        "basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte", "neutrophil",
        "platelet",
    )  # fmt: skip


@sources.register("organcmnist")
class OrganCMnist(_MedMnist):
    """Organs in coronal slices of CT scans, 28x28 grey."""

    about = _about(12_975, 2_392, 8_216, 11, 1)
    files = _file("organcmnist.npz", "b9ceb9546e10131b32923c5bbeaea2b1")
    classes = ORGANS


@sources.register("organsmnist")
class OrganSMnist(_MedMnist):
    """Organs in sagittal slices of CT scans, 28x28 grey."""

    about = _about(13_932, 2_452, 8_827, 11, 1)
    files = _file("organsmnist.npz", "9ab87b696fb54e2a387ebe992d6ed5f1")
    classes = ORGANS


@sources.register("pathmnist")
class PathMnist(_MedMnist):
    """Stained tissue of colorectal cancer, 28x28 colour."""

    about = _about(89_996, 10_004, 7_180, 9, 3)
    files = _file("pathmnist.npz", "a8b06965200029087d5bd730944a56c1")
    classes = (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
        "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
    )  # fmt: skip


@sources.register("tissuemnist")
class TissueMnist(_MedMnist):
    """Cells of the kidney cortex, 28x28 grey."""

    about = _about(165_466, 23_640, 47_280, 8, 1)
    files = _file("tissuemnist.npz", "ebe78ee8b05294063de985d821c1c34b")
    classes = (
        "Collecting Duct, Connecting Tubule", "Distal Convoluted Tubule", "Glomerular endothelial cells",
        "Interstitial endothelial cells", "Leukocytes", "Podocytes", "Proximal Tubule Segments", "Thick Ascending Limb",
    )  # fmt: skip
