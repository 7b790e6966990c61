import pytest

from vlrl.data import boxes

BOX = (0.25, 0.5, 0.75, 1.0)


@pytest.mark.parametrize(
    ("numbers", "space", "size_px"),
    [
        ([0.25, 0.5, 0.75, 1.0], "norm1", (480, 640)),
        ([250, 500, 750, 1000], "norm1000", (480, 640)),
        ([160, 240, 480, 480], "abs_resized", (480, 640)),  # pixels of the original
        ([154, 224, 462, 448], "abs_resized", (448, 616)),  # pixels after the resize
    ],
)
def test_one_box_in_four_conventions_is_the_same_box(numbers, space, size_px):
    assert boxes.from_numbers(numbers, space, size_px) == pytest.approx(BOX)


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ("norm1", "[0.25,0.50,0.75,1.00]"),
        ("norm1000", "[250,500,750,1000]"),
        ("abs_resized", "[154,224,462,448]"),
    ],
)
def test_boxes_are_written_in_the_convention_asked_for(space, text):
    assert boxes.to_text(BOX, space, (448, 616)) == text


def test_the_prompt_names_the_pixels_of_the_resized_frame():
    assert boxes.describe("abs_resized", (448, 616)) == "is given in pixels of the 616x448 frame"


def test_unknown_convention_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'norm100' .*norm1, norm1000, abs_resized"):
        boxes.to_text(BOX, "norm100", (448, 616))


def test_three_numbers_are_no_box():
    with pytest.raises(ValueError, match="4 numbers, got 3"):
        boxes.from_numbers([1, 2, 3], "norm1", (1, 1))


def test_corners_in_pixels_of_the_original_frame():
    # Written for the resized 616x448 frame, meant for the 1280x720 original.
    box = boxes.from_numbers([154, 224, 462, 448], "abs_resized", (448, 616))
    assert boxes.to_pixels(box, (720, 1280)) == pytest.approx((320, 360, 960, 720))


@pytest.mark.parametrize(
    ("family", "space"), [("qwen2_5_vl", "abs_resized"), ("qwen3_vl", "norm1000"), ("internvl", "norm1000")]
)
def test_each_family_has_its_own_convention_unless_one_is_named(family, space):
    assert boxes.of_family("family", family) == space
    assert boxes.of_family("norm1", family) == "norm1"


@pytest.mark.parametrize("space", boxes.SPACES)
@pytest.mark.parametrize("size_px", [(448, 616), (28, 5600), (3, 2)])
def test_a_box_that_is_written_and_read_again_stays_within_half_a_unit(space, size_px):
    box = (0.123, 0.456, 0.789, 0.987)
    numbers = [float(number) for number in boxes.to_text(box, space, size_px).strip("[]").split(",")]
    unit = {"norm1": (0.01, 0.01), "norm1000": (0.001, 0.001), "abs_resized": (1 / size_px[1], 1 / size_px[0])}[space]
    error = [abs(a - b) for a, b in zip(boxes.from_numbers(numbers, space, size_px), box, strict=True)]
    assert all(difference <= side / 2 + 1e-9 for difference, side in zip(error, unit * 2, strict=True))
