"""How 8-bit images are normalised: by a data set's usual constants, by those of a paper, or by the user's."""

from __future__ import annotations

from dataclasses import replace

from unskew.base.errors import InputError
from unskew.data.dataset import Dataset
from unskew.data.transforms import Scale

USUAL = "usual"
PUBLISHED: dict[str, tuple[Scale, Scale]] = {
    "half": ((0.5,), (0.5,)),  # FedAS; FedSOL and FLFA on MedMNIST
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # FedBlade, and condensation's usual ones
    "cifar_exact": ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)),  # FedSOL
    "cinic": ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),  # FedBlade, Tiny-ImageNet
}
"""Mean and standard deviation of a channel; one number stands for all channels."""


def normalise_by(dataset: Dataset, text: str) -> Dataset:
    """The data set with these constants: `usual`, a published name, or numbers `mean …; std …`, such as 0.5; 0.25."""
    if text == USUAL:
        return dataset
    mean, std = _read(text)
    if dataset.train.x.is_floating_point():
        raise InputError(
            f"data {dataset.name}: normalisation '{text}' is for images of 8 bits, these are numbers already; "
            "leave it out and normalise the numbers themselves"
        )
    channels = dataset.shape[0]
    mean, std = (scale * channels if len(scale) == 1 else scale for scale in (mean, std))
    if not len(mean) == len(std) == channels:
        raise InputError(
            f"data {dataset.name}: normalisation '{text}' is for {max(len(mean), len(std))} channels, the images have "
            f"{channels}; give one number for all channels, or one for each"
        )
    return replace(dataset, mean=mean, std=std)


def _read(text: str) -> tuple[Scale, Scale]:
    if text in PUBLISHED:
        return PUBLISHED[text]
    mean, semicolon, std = text.partition(";")
    try:
        scales = tuple(tuple(float(number) for number in part.split()) for part in (mean, std))
    except ValueError:
        scales = ((), ())
    if (
        not semicolon
        or not all(scales)
        or min(scales[1]) <= 0
        or not all(abs(n) < 1e6 for part in scales for n in part)
    ):
        raise InputError(
            f"normalisation: expected {USUAL}, {', '.join(PUBLISHED)}, or numbers such as '0.5 0.5 0.5; 0.2 0.2 0.2' "
            f"(means; deviations above 0), got '{text}'"
        )
    return scales[0], scales[1]
