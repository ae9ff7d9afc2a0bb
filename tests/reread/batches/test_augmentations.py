"""The effect of augmentations on images, and how often."""

import numpy as np
import pytest
import torch

from reread.batches.augmentations import (
    REGISTRY,
    Rows,
    alternating_flip,
    build,
    cutout,
    flip,
    make_generator,
    overlay,
    shift,
    shrink,
)
from reread.storage.errors import InputError

CPU = torch.device("cpu")
SIZE = 32


def generator(seed=0, epoch=1):
    return make_generator(seed, epoch, CPU)


def numbered(count, size=SIZE):
    """Images [count, 2, size, size] whose pixels are all different and not zero."""
    return torch.arange(1.0, count * 2 * size * size + 1).view(count, 2, size, size)


def test_each_augmentation_is_a_file():
    assert {"alternating_flip", "cutout", "flip", "overlay", "shift"} <= set(REGISTRY.available())


@pytest.mark.parametrize("name", [name for name in REGISTRY.available() if name != "shrink"])
def test_an_augmentation_is_a_function_of_seed_and_epoch_and_keeps_what_it_is_given(name):
    images, target = numbered(16), torch.eye(4).repeat(4, 1)
    before, augment = images.clone(), build([{"name": name}], "image")

    def apply(seed, epoch):
        return augment(images, target, generator(seed, epoch), Rows(torch.arange(16), seed, epoch))

    expected, labels = apply(3, 2)
    assert torch.equal(images, before) and expected.shape == images.shape and expected.dtype == images.dtype
    again = apply(3, 2)
    assert torch.equal(again[0], expected) and torch.equal(again[1], labels)
    for other in ((3, 1), (2, 2)):
        assert not torch.equal(apply(*other)[0], expected)


def test_an_alternating_flip_shows_each_image_both_ways_in_two_epochs_running():
    images, numbers = numbered(2000, 4), torch.arange(500, 2500)
    shown = {
        (seed, epoch): alternating_flip.apply(images, Rows(numbers, seed, epoch), alternating_flip.Settings())
        for seed in (0, 1)
        for epoch in (1, 2, 3)
    }
    as_is = {place: (pictures == images).flatten(1).all(dim=1) for place, pictures in shown.items()}
    for place, pictures in shown.items():
        assert (as_is[place] ^ (pictures == images.flip(3)).flatten(1).all(dim=1)).all()
        # Five standard deviations; the row's neighbours and the seed say nothing of it.
        for other in (as_is[place].roll(1), as_is[place].roll(2), as_is[(1 - place[0], place[1])]):
            assert abs(int((as_is[place] ^ other).sum()) - 1000) < 112
        assert abs(int(as_is[place].sum()) - 1000) < 112
    assert torch.equal(as_is[0, 1], ~as_is[0, 2]) and torch.equal(as_is[0, 1], as_is[0, 3])
    # A row keeps its way in whichever batch it is.
    half = alternating_flip.apply(images[1::2], Rows(numbers[1::2], 0, 1), alternating_flip.Settings())
    assert torch.equal(half, shown[0, 1][1::2])


def test_images_are_smaller_in_the_first_epochs_and_look_the_same():
    images = numbered(4, 12)
    settings = shrink.Settings((6, 8), (2, 1))
    sizes = [shrink.apply(images, Rows(torch.arange(4), 0, epoch), settings).shape[2:] for epoch in (1, 2, 3, 4)]
    assert sizes == [(6, 6), (6, 6), (8, 8), (12, 12)]
    small = shrink.apply(images, Rows(torch.arange(4), 0, 1), settings)
    # Away from the edges a pixel of half the size is about the mean of four.
    means = torch.nn.functional.avg_pool2d(images, 2)
    torch.testing.assert_close(small[..., 1:-1, 1:-1], means[..., 1:-1, 1:-1])
    # At a third of the size every pixel still counts: one bright column in three is no black image.
    striped = torch.tensor([0.0, 0.0, 3.0]).repeat(4).expand(1, 1, 12, 12)
    third = shrink.apply(striped, Rows(torch.arange(1), 0, 1), shrink.Settings((4,), (1,)))
    assert third.min() > 0.5 and third.max() < 1.5
    with pytest.raises(InputError, match="each stage"):
        shrink.Settings((6, 8), (2,))


def test_about_half_of_the_images_are_mirrored():
    images = numbered(2000, 4)
    flipped = flip.apply(images, generator(), flip.Settings())
    mirrored = (flipped == images.flip(3)).flatten(1).all(dim=1)
    assert ((flipped == images).flatten(1).all(dim=1) ^ mirrored).all()
    # Five standard deviations.
    assert abs(int(mirrored.sum()) - 1000) < 112
    assert torch.equal(flip.apply(images, generator(), flip.Settings(0.0)), images)


@pytest.mark.parametrize("padding", ["zeros", "reflect"])
def test_each_image_is_shifted_as_a_crop_of_the_padded_image_is(padding):
    images, pixels = numbered(3000, 6), 2
    shifted = shift.apply(images, generator(), shift.Settings(pixels, padding))
    mode = {"zeros": "constant", "reflect": "reflect"}[padding]
    padded = torch.nn.functional.pad(images, (pixels,) * 4, mode)
    crops = torch.stack([padded[:, :, y : y + 6, x : x + 6] for y in range(5) for x in range(5)])
    equal = (crops == shifted).flatten(2).all(dim=2)
    assert (equal.sum(dim=0) == 1).all()
    # Each of 25 crops is as likely: 120 of each, with a standard deviation of 10.7.
    assert (equal.sum(dim=1) - 120).abs().max() < 54


def test_the_darkest_value_of_each_channel_can_move_in_at_the_edges():
    images, pixels = numbered(200, 6) - 500, 2
    shifted = shift.apply(images, generator(), shift.Settings(pixels, "darkest"))
    low = images.amin(dim=(2, 3), keepdim=True)
    padded = torch.nn.functional.pad(images - low, (pixels,) * 4) + low
    crops = torch.stack([padded[:, :, y : y + 6, x : x + 6] for y in range(5) for x in range(5)])
    assert ((crops == shifted).flatten(2).all(dim=2).sum(dim=0) == 1).all()


def test_an_image_may_stay_where_it_is():
    images = numbered(4)
    assert torch.equal(shift.apply(images, generator(), shift.Settings(0)), images)
    wide = torch.nn.functional.pad(images, (0, 1))
    for given in (images, wide, wide.mT):
        with pytest.raises(InputError, match="shift.pixels is 32"):
            shift.apply(given, generator(), shift.Settings(32, "reflect"))
    assert shift.apply(images, generator(), shift.Settings(32)).shape == images.shape


def test_a_square_is_cut_out_whose_centre_is_any_pixel():
    images = torch.ones(4000, 2, SIZE, SIZE)
    cut = cutout.apply(images, generator(), cutout.Settings(16))
    assert torch.equal(cut[:, 0], cut[:, 1])
    gone = cut[:, 0] == 0
    height, width = gone.any(dim=2).sum(dim=1), gone.any(dim=1).sum(dim=1)
    assert torch.equal(gone.sum(dim=(1, 2)), height * width)
    # Its row says nothing of its column: five standard deviations.
    first = torch.stack([gone.any(dim=2).float().argmax(dim=1), gone.any(dim=1).float().argmax(dim=1)])
    assert abs(torch.corrcoef(first.double())[0, 1]) < 5 / 4000**0.5
    # A side is 8 pixels at the first centre, and 8, 9, ... at the last ones; it is whole at the 17 in between.
    sides = np.minimum(np.arange(SIZE) + 8, SIZE) - np.maximum(np.arange(SIZE) - 8, 0)
    assert sides.min() == 8 and sides.max() == 16
    for side in (height, width):
        assert side.min() == 8 and side.max() == 16
        assert abs(float(side.double().mean()) - sides.mean()) < 5 * sides.std() / 4000**0.5
    assert torch.equal(cut.bool(), ~gone.unsqueeze(1).expand_as(cut))


def test_augmentations_are_applied_in_the_order_of_the_list():
    images = numbered(8)
    both = [{"name": "cutout", "size": 8}, {"name": "flip", "probability": 1.0}]
    expected = flip.apply(cutout.apply(images, draws := generator(), cutout.Settings(8)), draws, flip.Settings(1.0))
    augmented, target = build(both, "image")(images, torch.arange(8), generator())
    assert torch.equal(augmented, expected) and torch.equal(target, torch.arange(8))


def test_another_class_is_laid_over_each_image_with_its_label():
    count, black, white = 64, -0.5, 3.0
    images = torch.full((count, 1, 8, 8), black)
    classes = torch.arange(count) % 4
    # Each image has a pixel of its own, all have one in common.
    images.flatten(1)[torch.arange(count), torch.arange(count)] = 1.0 + torch.arange(count) / 64
    images[:, :, 7, 7] = white
    target = torch.nn.functional.one_hot(classes, 4).float()
    overlaid, labels = overlay.apply(images, target, generator(), overlay.Settings())
    assert (labels.sum(dim=1) == 2).all() and (labels.gather(1, classes[:, None]) == 1).all()
    assert (overlaid[:, :, 7, 7] == white).all() and overlaid.min() == black
    for row in range(count - 1):
        inked = (overlaid[row].flatten()[: count - 1] > black).nonzero().flatten().tolist()
        (other,) = set(inked) - {row} or {count - 1}
        assert labels[row, classes[other]] == 1
        torch.testing.assert_close(overlaid[row].flatten()[other], images[other].flatten()[other])
    alone, same = overlay.apply(images[:3], torch.eye(4)[[1, 1, 1]], generator(), overlay.Settings())
    assert torch.equal(alone, images[:3]) and torch.equal(same, torch.eye(4)[[1, 1, 1]])
    with pytest.raises(InputError, match="overlay"):
        overlay.apply(images, classes, generator(), overlay.Settings())
