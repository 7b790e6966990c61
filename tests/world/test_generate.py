import json

import av
import pytest

from vlrl.world import generate

ARGUMENTS = ["--train", "8", "--eval", "4", "--seed", "3"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("world")
    generate.main(["--out", str(out), *ARGUMENTS])
    return out


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_name_videos_that_exist_and_tasks_take_turns(written):
    for split, count in (("train", 8), ("eval", 4)):
        made = rows(written / f"{split}.jsonl")
        assert [row["task"] for row in made] == ["mcq", "when", "where", "both"] * (count // 4)
        assert len({row["example_id"] for row in made}) == count
        for row in made:
            assert row["video"].startswith(f"{split}/")
            assert (written / row["video"]).stat().st_size > 1000


def test_tracks_have_the_times_of_the_frames_of_the_video(written):
    for row in rows(written / "train.jsonl"):
        with av.open(str(written / row["video"])) as container:
            times = [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]
        for track in row["tracks"].values():
            assert all(min(abs(t - known) for known in times) < 2e-4 for t, *_ in track)


def test_equal_arguments_write_equal_rows_and_videos(written, tmp_path):
    generate.main(["--out", str(tmp_path), *ARGUMENTS, "--workers", "1"])
    for name in ("train.jsonl", "eval.jsonl", "train/00001.mp4", "eval/00003.mp4"):
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


def test_splits_share_no_scene():
    hashes = {
        split: {generate.scene_hash(generate.scene_with_questions(0, split, index)[0]) for index in range(60)}
        for split in generate.SPLITS
    }
    assert len(hashes["train"]) == len(hashes["eval"]) == 60
    assert not hashes["train"] & hashes["eval"]


def test_a_scene_already_seen_is_not_made_again():
    first, _ = generate.scene_with_questions(0, "eval", 2)
    second, _ = generate.scene_with_questions(0, "eval", 2, seen={generate.scene_hash(first)})
    assert generate.scene_hash(first) != generate.scene_hash(second)


def test_several_questions_of_a_video_are_of_different_tasks(tmp_path):
    generate.main(["--out", str(tmp_path), "--train", "2", "--eval", "1", "--questions-per-video", "4"])
    made = rows(tmp_path / "train.jsonl")
    assert [row["task"] for row in made] == ["mcq", "when", "where", "both"] * 2
    assert len({row["video"] for row in made}) == 2


def test_more_questions_than_tasks_are_refused():
    with pytest.raises(ValueError, match="questions per video is 5"):
        generate.scene_with_questions(0, "train", 0, per_video=5)
