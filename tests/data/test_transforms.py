import pytest
import torch

from small_runs import play
from unskew.base.errors import InputError
from unskew.data.transforms import Augment, normalise, transforms

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def images(n=20, height=9, width=7, seed=0):
    return torch.randint(256, (n, 3, height, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def naive(augment, x, numbers):
    """The same by plain loops over samples and pixels."""
    out = torch.zeros(x.shape, dtype=torch.float32)
    height, width = x.shape[2:]
    for n, (top, left, flip, row, column) in enumerate(numbers.tolist()):
        for i in range(height):
            for j in range(width):
                si, sj = i, width - 1 - j if flip else j
                if augment.crop:
                    si, sj = si + top - augment.crop, sj + left - augment.crop
                inside = 0 <= si < height and 0 <= sj < width
                if augment.pad_mode == "reflect":
                    si, sj = abs(si), abs(sj)
                    si, sj = min(si, 2 * (height - 1) - si), min(sj, 2 * (width - 1) - sj)
                    inside = True
                for c in range(3):
                    pixel = x[n, c, si, sj].item() if inside else 0
                    out[n, c, i, j] = (pixel / 255 - MEAN[c]) / STD[c]
                half = augment.cutout // 2
                if augment.cutout and row - half <= i < row + half and column - half <= j < column + half:
                    out[n, :, i, j] = 0
    return out


@pytest.mark.parametrize(
    "spec",
    ["none", "flip", "crop_flip", "fedsol_cinic", "augment(cutout=4)", "augment(crop=3)", "fedsol_cifar(cutout=6)"],
)
def test_equals_the_naive_reference(spec):
    augment, x = transforms.build(spec), images()
    before = x.clone()
    draws = augment.draw(len(x), (3, 9, 7), rng())
    torch.testing.assert_close(augment.apply(x, draws, MEAN, STD), naive(augment, x, draws.numbers))
    assert torch.equal(x, before)


@pytest.mark.parametrize("spec", ["none", "crop_flip", "fedsol_cinic", "fedsol_cifar"])
def test_seeded_and_independent_of_slicing(spec):
    augment, x = transforms.build(spec), images(50)
    draws = augment.draw(50, (3, 9, 7), rng())
    assert torch.equal(draws.numbers, augment.draw(50, (3, 9, 7), rng()).numbers)
    whole = augment.apply(x, draws, MEAN, STD)
    pieces = [augment.apply(x[a : a + 13], draws.slice(a, a + 13), MEAN, STD) for a in range(0, 50, 13)]
    assert torch.equal(whole, torch.cat(pieces))
    chosen = torch.tensor([7, 3, 3])
    assert torch.equal(whole[chosen], augment.apply(x[chosen], draws[chosen], MEAN, STD))
    assert len(draws) == 50


def test_draws_cover_their_ranges():
    numbers = transforms.build("fedsol_cifar").draw(5000, (3, 9, 7), rng()).numbers
    assert numbers.min(0).values.tolist() == [0, 0, 0, 0, 0]
    assert numbers.max(0).values.tolist() == [8, 8, 1, 8, 6]
    assert abs(numbers[:, 2].float().mean() - 0.5) < 0.03


def test_cutout_is_clipped_at_the_border_and_square_inside():
    augment = Augment(cutout=4)
    x = torch.full((2, 3, 9, 7), 255, dtype=torch.uint8)
    draws = augment.draw(2, (3, 9, 7), rng())
    draws.numbers[:, 3:] = torch.tensor([[0, 0], [4, 3]])
    holes = (augment.apply(x, draws, MEAN, STD) == 0).sum((1, 2, 3))
    assert holes.tolist() == [3 * 2 * 2, 3 * 4 * 4]


def test_padding_is_black_before_normalisation():
    augment = Augment(crop=2)
    draws = augment.draw(1, (3, 9, 7), rng())
    draws.numbers[:, :2] = 0
    out = augment.apply(images(1), draws, MEAN, STD)
    torch.testing.assert_close(out[0, :, 0, 0], -torch.tensor(MEAN) / torch.tensor(STD))


def test_normalise():
    x = images()
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    torch.testing.assert_close(normalise(x, MEAN, STD), (x.float() / 255 - mean) / std)
    assert normalise(x, MEAN, STD).dtype == torch.float32
    features = torch.rand(4, 5, dtype=torch.float64)
    assert torch.equal(normalise(features, (0.0,), (1.0,)), features.float())


def test_presets_and_errors(refused):
    assert transforms.build("none").is_identity and transforms.build({"name": "none"}).is_identity
    assert not transforms.build("crop_flip").is_identity
    assert str(transforms.build("crop_flip(crop=2)")) == "crop_flip(crop=2)"
    preset = transforms.build("fedsol_cifar")
    assert (preset.crop, preset.pad_mode, preset.flip, preset.cutout) == (4, "zeros", True, 16)
    assert {"none", "flip", "crop_flip", "fedsol_cifar", "fedsol_cinic"} <= set(transforms)
    refused(lambda: transforms.build("augment(crop=-1)"), "crop")
    refused(lambda: transforms.build("crop_flap"), "crop_flip")
    refused(lambda: transforms.build("flip").draw(3, (10,), rng()), "flip", "(10,)")
    refused(lambda: transforms.build("fedsol_cinic").draw(3, (1, 4, 4), rng()), "lower crop")


@pytest.mark.parametrize("augment", ["augment(cutout=16)", "augment(crop=9)"])
def test_augmentations_that_leave_nothing_are_refused(augment):
    with pytest.raises(InputError, match="leaves nothing of most images, which have 8 pixels; lower it"):
        play(augment=augment)
