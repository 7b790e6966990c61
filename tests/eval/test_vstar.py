"""V-STaR by hand and against the tables of the SER paper."""

import math

import pytest

from vlrl.eval import vstar

BOX = {"xmin": 10, "ymin": 10, "xmax": 50, "ymax": 50}


def row(**prediction):
    return {
        "vid": "v",
        "domain": "Sports",
        "fps": 10.0,
        "frame_count": 300,
        "width": 100,
        "height": 100,
        "timestamps": [2, 8],
        "bboxes": [{"timestamp": 2, "frame_index": 20, **BOX}, {"timestamp": 3, "frame_index": 30, **BOX}],
        **prediction,
    }


RIGHT = row(answer_vqa="a dog", score=3, answer_temporal=[4, 10], answer_spatial={"2": [10, 10, 50, 50]})
WRONG = row(answer_vqa="a cat", score=1)


@pytest.mark.parametrize("official", [False, True])
def test_two_rows_by_hand(official):
    """tIoU of [4, 10] with [2, 8] is 4/8; of two true boxes one is found exactly."""
    result = vstar.report([RIGHT, WRONG], official)["overall"]
    one, two = result["chain1"], result["chain2"]
    assert (result["what"]["acc"], one["when"]["mIoU"], one["where"]["mIoU"]) == (0.5, 0.25, 0.25)
    assert [one["when"][f"R@{t}"] for t in (0.3, 0.5, 0.7)] == [0.5, 0.5, 0.0]
    assert [one["where"][f"AP@{t}"] for t in (0.1, 0.3, 0.5, 0.7, 0.9)] == [0.25] * 5
    assert one["AM"] == pytest.approx(1 / 3)
    assert one["LGM"] == pytest.approx(0.42284, abs=1e-5)
    assert two["AM"] == pytest.approx(1 / 6)
    assert two["LGM"] == pytest.approx(0.23105, abs=1e-5)
    assert result["mAM"] == pytest.approx(0.25)
    assert result["mLGM"] == pytest.approx(0.32694, abs=1e-5)
    assert set(one["joint"].values()) == {0.5}
    assert set(two["joint"].values()) == {0.0}


def test_row_alone_has_the_recalls_of_its_own_boxes():
    assert vstar.score(RIGHT).recall == ((0.5,) * 5, (0.0,) * 5)
    assert vstar.score(RIGHT).viou == (0.5, 0.0)


def test_table_1_and_12_of_ser():
    """What .616, when .279 and .307, where .273 and .051: the paper's AM, LGM, mAM, mLGM, times 100."""
    first, second = (0.616, 0.279, 0.307), (0.616, 0.273, 0.051)
    assert [round(100 * vstar.am(*chain), 2) for chain in (first, second)] == [40.07, 31.33]
    assert [round(100 * vstar.lgm(*chain), 2) for chain in (first, second)] == [55.03, 44.28]
    assert round(50 * (vstar.am(*first) + vstar.am(*second)), 1) == 35.7
    assert round(50 * (vstar.lgm(*first) + vstar.lgm(*second)), 2) == pytest.approx(49.65, abs=0.011)


def test_perfect_part_makes_lgm_infinite_and_stops_nothing():
    assert vstar.lgm(1.0, 0.5, 0.5) == math.inf
    assert vstar.report([RIGHT])["overall"]["mLGM"] == math.inf


def test_unanswered_row_leaves_the_published_means_but_not_its_denominators():
    unanswered = row(answer_vqa="", answer_temporal=[2, 8])
    published = vstar.report([RIGHT, unanswered], official=True)
    assert published["overall"]["what"]["acc"] == 0.5
    assert published["overall"]["chain1"]["when"]["mIoU"] == 0.5
    assert published["overall"]["chain1"]["joint"]["what_when"] == 0.5
    assert published["domain"]["Sports"]["what"]["acc"] == 1.0  # a split divides by its answered rows
    ours = vstar.report([RIGHT, unanswered])
    assert ours["overall"]["what"]["acc"] == 0.5
    assert ours["overall"]["chain1"]["when"]["mIoU"] == 0.75
    assert ours["unread"]["what"] == 0.5


@pytest.mark.parametrize(("said", "score"), [(2, 2.0), ("2", 2.0), ("Score: 3", 3.0), ("2/3", 2.0), ("none", None)])
def test_judge_is_read_where_it_says_a_number(said, score):
    ours, published = (vstar.score({**WRONG, "score": said}, official).score for official in (False, True))
    assert ours == score or (score is None and math.isnan(ours))
    assert published == ours or (math.isnan(published) and not isinstance(said, int))


def test_words_around_the_score_cost_it_in_the_published_script():
    said = {**RIGHT, "score": "Score: 3"}
    assert vstar.report([said, WRONG])["overall"]["what"]["acc"] == 0.5
    published = vstar.report([said, WRONG], official=True)
    assert published["overall"]["what"] == {"acc": 0.0, "avg_all_score": 0.5, "avg_valid_score": 1.0}
    assert published["unread"]["judge"] == 0.5


def test_unreadable_score_is_left_out_and_counted():
    result = vstar.report([RIGHT, {**WRONG, "score": "hm"}])
    assert result["overall"]["what"]["acc"] == 1.0
    assert result["unread"]["judge"] == 0.5


def test_failed_video_is_left_out_and_counted():
    result = vstar.report([RIGHT, row(failure="timeout")])
    assert result["failed_videos"] == 1
    assert result["overall"]["rows"] == 1


@pytest.mark.parametrize("key", ["2.0", "2", "2s", "00:02"])
def test_seconds_are_found_however_they_are_written(key):
    given = {**RIGHT, "answer_spatial": {key: [10, 10, 50, 50]}}
    assert vstar.score(given).viou[0] == 0.5
    assert vstar.score(given, official=True).viou[0] == (0.5 if key == "2" else 0.0)


def test_boxes_of_the_model_are_converted_except_in_the_published_script():
    given = {**RIGHT, "answer_spatial": {"2": [100, 100, 500, 500], "3": [[0, 0, 1, 1], [100, 100, 500, 500]]}}
    assert vstar.score(given, box_space="norm1000").viou[0] == pytest.approx(1.0)
    assert vstar.score(given, official=True, box_space="norm1000").viou[0] == 0.0
    seen = {**RIGHT, "answer_spatial": {"2": [20, 5, 100, 25]}, "box_size_px": [50, 200]}
    assert vstar.score(seen, box_space="abs_resized").viou[0] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="needs the field box_size_px"):
        vstar.score(RIGHT, box_space="abs_resized")


@pytest.mark.parametrize("value", ["[4, 10]", "(4, 10.0)", (4, 10)])
def test_interval_may_be_text(value):
    assert vstar.score({**RIGHT, "answer_temporal": value}).tiou[0] == 0.5


@pytest.mark.parametrize("value", [None, "", [], "4 to 10", [4], [4, "x"], [4, 10, 12], {"a": 1}, "[" * 1000, 7])
def test_what_is_no_interval_is_counted_unread(value):
    one = vstar.score({**RIGHT, "answer_temporal": value, "answer_spatial": value})
    assert (one.tiou[0], one.viou[0]) == (0.0, 0.0)
    assert one.parsed[0] is False


@pytest.mark.parametrize(("frames", "name"), [(599, "Short"), (600, "Medium"), (1799, "Medium"), (1800, "Long")])
def test_lengths_split_at_one_and_three_minutes(frames, name):
    assert vstar.length(row(frame_count=frames)) == name
    assert list(vstar.report([row(frame_count=frames)])["length"]) == [name]


def test_splits_are_the_overall_figures_of_their_rows():
    other = {**WRONG, "domain": "Life", "frame_count": 6000}
    result = vstar.report([RIGHT, other])
    assert result["domain"]["Life"] == vstar.report([other])["overall"] == result["length"]["Long"]
    assert result["length"]["Short"] == vstar.report([RIGHT])["overall"]
