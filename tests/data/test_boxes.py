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
