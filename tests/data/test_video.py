import dataclasses
import os
import pathlib
import subprocess
import sys
import time

import av
import numpy as np
import pytest

from vlrl import types
from vlrl.data import decode, video

EIGHT = [k / 8 for k in range(8)]

STUBS = """
import os, time
import numpy as np
from vlrl.data import decode

def run(path, num_frames, cfg):
    if "sleep" in path:
        time.sleep(600)
    if "die" in path:
        os.kill(os.getpid(), 9)
    if "bug" in path:
        raise KeyError("a mistake")
    if "eat" in path:
        return bytearray(2**34)
    return decode.Clip(np.full((2, 4, 4, 3), int(path), np.uint8), np.array([0.0, 1.0]), 2.0, 1.0)
"""


@pytest.fixture
def stub_pool(tmp_path, monkeypatch, data_cfg):
    (tmp_path / "stub_decoder.py").write_text(STUBS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cfg = dataclasses.replace(data_cfg, decode_timeout_s=1.0)
    with video.DecodePool(cfg, "stub_decoder:run") as pool:
        yield pool


def _levels(clip):
    """Which frames these are, by the grey of their lower right corner."""
    return np.round((clip.frames[:, -8, -8].mean(-1) - 20) / 6).astype(int).tolist()


def _decode(path, num_frames, cfg, **changes):
    clip = video.decode(path, num_frames, dataclasses.replace(cfg, **changes))
    assert isinstance(clip, types.Video), clip
    return clip


def _failure(path, cfg, **changes):
    failure = video.decode(path, 4, dataclasses.replace(cfg, **changes))
    assert isinstance(failure, types.Failure)
    assert pathlib.Path(path).name in failure.detail
    return failure


@pytest.mark.parametrize("backend", ["pyav", "auto", "decord"])
def test_frames_are_spread_evenly_and_keep_their_times(make_clip, data_cfg, backend):
    path = make_clip("good.mp4", EIGHT, rate=8)
    clip = _decode(path, 4, data_cfg, backend=backend)
    # moments 0, .2917, .5833, .875
    assert _levels(clip) == [0, 2, 5, 7]
    np.testing.assert_allclose(clip.times_s, [0, 0.25, 0.625, 0.875], atol=2e-3)
    assert clip.duration_s == pytest.approx(1.0, abs=0.05)
    assert clip.fps == pytest.approx(8, abs=0.5)
    assert clip.frames.dtype == np.uint8
    assert clip.frames.shape == (4, 64, 96, 3)


@pytest.mark.parametrize(("have", "ask", "got"), [(31, 32, 30), (7, 32, 6), (8, 5, 4), (2, 16, 2), (3, 2, 2)])
def test_frame_count_is_even_and_of_frames_that_exist(make_clip, data_cfg, have, ask, got):
    clip = _decode(make_clip("some.mp4", [k / 10 for k in range(have)]), ask, data_cfg)
    assert len(clip.frames) == len(clip.times_s) == got
    assert len(set(_levels(clip))) == got


def test_a_single_frame_is_given_twice(make_clip, data_cfg):
    clip = _decode(make_clip("one.mp4", [0.0]), 8, data_cfg)
    assert clip.frames.shape[0] == 2
    assert clip.times_s.tolist() == [0.0, 0.0]


def test_variable_rate_is_sampled_by_time_not_by_number(make_clip, data_cfg):
    times_s = [0, 0.1, 0.2, 0.3, 0.4, 5.0, 7.5, 9.0]
    clip = _decode(make_clip("vfr.mp4", times_s), 4, data_cfg)
    # moments 0, 3, 6, 9
    assert _levels(clip) == [0, 5, 5, 7]
    np.testing.assert_allclose(clip.times_s, [0, 5.0, 5.0, 9.0], atol=2e-3)


def test_times_count_from_the_first_frame(make_clip, data_cfg):
    clip = _decode(make_clip("late.mkv", [3 + time_s for time_s in EIGHT]), 2, data_cfg)
    np.testing.assert_allclose(clip.times_s, [0, 0.875], atol=2e-3)


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mkv", "libx264"), ("a.webm", "libvpx-vp9"), ("a.ts", "libx264"), ("a.avi", "mpeg4"), ("a.mov", "libx264")],
)
def test_known_containers_decode(make_clip, data_cfg, name, codec):
    clip = _decode(make_clip(name, [k / 30 for k in range(8)], codec=codec), 4, data_cfg)
    assert _levels(clip) == [0, 2, 5, 7]


def test_title_that_is_no_utf8_costs_nothing(make_clip, data_cfg):
    path = pathlib.Path(make_clip("old.mkv", np.arange(8) / 10))
    path.write_bytes(path.read_bytes().replace(b"Lavf", b"\xe9\xff\xfe\xe9"))  # the muxer's name, in two tags
    assert len(decode.decode(str(path), 4, data_cfg).frames) == 4


def test_stream_copied_cut_shows_what_players_show(make_clip, tmp_path, data_cfg):
    path, cut = make_clip("whole.mp4", [k / 30 for k in range(36)]), str(tmp_path / "cut.mp4")
    # Starts at frame 12: earlier frames stay in the file, hidden by an edit list, as after `ffmpeg -ss .4 -c copy`.
    with av.open(path) as source, av.open(cut, "w") as output:
        stream = source.streams.video[0]
        copied = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.pts -= int(0.4 / stream.time_base)
                packet.dts -= int(0.4 / stream.time_base)
                packet.stream = copied
                output.mux(packet)
    clip = _decode(cut, 4, data_cfg)
    assert _levels(clip) == [12, 20, 27, 35]
    np.testing.assert_allclose(clip.times_s, [0, 8 / 30, 15 / 30, 23 / 30], atol=2e-3)
    # decord counts the hidden frames too
    assert "use data.backend=auto" in video.decode(cut, 4, dataclasses.replace(data_cfg, backend="decord")).detail


def test_sampling_equals_nearest_by_hand():
    times_s = np.array([0, 1.8, 5.0, 7.5, 9.7])
    assert decode.sample(times_s, 4).tolist() == [0, 1, 3, 4]  # moments 0, 3.23, 6.47, 9.7
    assert decode.sample(np.array([0.0, 1.0, 2.0, 3.0]), 2).tolist() == [0, 3]
    assert decode.sample(np.array([0.0]), 16).tolist() == [0, 0]


@pytest.mark.parametrize("backend", ["pyav", "auto"])
def test_phone_rotation_is_applied(make_clip, data_cfg, backend):
    path = make_clip("phone.mp4", EIGHT)
    upright = _decode(path, 2, data_cfg, backend="pyav")
    data = bytearray(pathlib.Path(path).read_bytes())
    matrix = data.index(b"tkhd") + 44
    # a b u c d v x y w of ISO 14496-12: a quarter turn clockwise, (x, y) goes to (-y, x)
    values = [0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30]
    data[matrix : matrix + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in values)
    pathlib.Path(path).write_bytes(data)
    turned = _decode(path, 2, data_cfg, backend=backend)
    assert turned.frames.shape == (2, 96, 64, 3)
    expected = np.rot90(upright.frames, -1, axes=(1, 2)).astype(int)
    assert np.abs(turned.frames - expected).mean() < 2
    # the white quarter was top left and is top right
    assert turned.frames[0, 10, -10].mean() > 200
    assert turned.frames[0, 10, 10].mean() < 100


def test_missing_file_is_named(tmp_path, data_cfg):
    assert _failure(str(tmp_path / "gone.mp4"), data_cfg).reason == "missing"


def test_folder_is_unreadable(tmp_path, data_cfg):
    assert _failure(str(tmp_path), data_cfg).reason == "unreadable"


@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}])
def test_half_a_file_is_unreadable(make_clip, data_cfg, options):
    path = pathlib.Path(make_clip("half.mp4", EIGHT, options=options))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert _failure(str(path), data_cfg).reason == "unreadable"


def test_damaged_moov_is_unreadable(make_clip, data_cfg):
    path = pathlib.Path(make_clip("rot.mp4", EIGHT))
    data = path.read_bytes()
    place = data.index(b"stsd")
    path.write_bytes(data[:place] + bytes(60) + data[place + 60 :])
    assert _failure(str(path), data_cfg).reason == "unreadable"


@pytest.mark.parametrize(
    "content",
    [
        b"this is no video\n" * 100,
        b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"",
        b"GIF89a" + bytes(100),
    ],
)
def test_other_things_named_mp4_are_refused(tmp_path, data_cfg, content):
    path = tmp_path / "fake.mp4"
    path.write_bytes(content)
    assert _failure(str(path), data_cfg).reason == "container"


@pytest.mark.parametrize("url", ["concat:a.mp4|b.mp4", "subfile,,start,0,end,0,,:a.mp4", "http://127.0.0.1/a.mp4"])
def test_protocols_are_not_files(data_cfg, url):
    assert video.decode(url, 4, data_cfg).reason == "missing"


def test_video_over_the_byte_limit_is_refused_before_decoding(make_clip, data_cfg):
    path = make_clip("big.mp4", EIGHT)
    failure = _failure(path, data_cfg, max_decoded_bytes=64 * 96 * 3 * 4 - 1)
    assert failure.reason == "limits"
    assert "data.max_decoded_bytes is 73727; raise it" in failure.detail


def test_audio_alone_is_unreadable(tmp_path, data_cfg):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    failure = _failure(str(path), data_cfg)
    assert failure.reason == "unreadable"
    assert "no video stream" in failure.detail


def test_pool_returns_videos_and_failures_in_order(make_clip, tmp_path, data_cfg):
    good = [make_clip(f"{n}.mp4", [k / 8 for k in range(n)]) for n in (8, 6)]
    with video.DecodePool(data_cfg) as pool:
        results = pool.map([good[0], str(tmp_path / "gone.mp4"), good[1]])
        again = pool.map(good)
    assert [type(result) for result in results] == [types.Video, types.Failure, types.Video]
    assert _levels(results[2]) == [0, 2, 3, 5]
    here = video.decode(good[0], 4, data_cfg)
    np.testing.assert_array_equal(again[0].frames, here.frames)


def test_hung_decoder_is_killed_and_the_rest_goes_on(stub_pool):
    start = time.monotonic()
    results = stub_pool.map(["1", "sleep", "2", "sleep", "3"])
    assert time.monotonic() - start < 30
    assert [getattr(result, "reason", None) for result in results] == [None, "timeout", None, "timeout", None]
    assert [result.frames[0, 0, 0, 0] for result in results[::2]] == [1, 2, 3]
    assert "raise decode_timeout_s" in results[1].detail


def test_dead_decoder_is_replaced(stub_pool):
    results = stub_pool.map(["die", "1", "die", "2"])
    assert [getattr(result, "reason", None) for result in results] == ["crashed", None, "crashed", None]


def test_mistake_or_memory_hunger_in_the_decoder_is_a_failure(stub_pool):
    results = stub_pool.map(["bug", "eat", "1"])
    assert [getattr(result, "reason", None) for result in results] == ["crashed", "crashed", None]
    assert "a mistake" in results[0].detail
    assert "MemoryError" in results[1].detail


def test_workers_that_cannot_start_end_the_run(data_cfg):
    with video.DecodePool(data_cfg, "no_such_module:run") as pool, pytest.raises(RuntimeError, match="do not start"):
        pool.map(["a.mp4"])


def test_workers_do_not_import_jax():
    code = "import sys, vlrl.data.decode_worker; print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_workers_end_with_their_parent(tmp_path):
    (tmp_path / "stub_decoder.py").write_text(STUBS)
    code = (
        "import os, threading, time\n"
        "from vlrl.config import DataConfig\n"
        "from vlrl.data import video\n"
        "pool = video.DecodePool(DataConfig(decode_workers=2), 'stub_decoder:run')\n"
        "pool.map(['1', '2'])\n"
        "print(*[worker.process.pid for worker in pool._workers], flush=True)\n"
        "threading.Thread(target=pool.map, args=(['sleep'],), daemon=True).start()\n"
        "time.sleep(1)\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{pathlib.Path(decode.__file__).parents[2]}"}
    pids = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split()
    assert len(pids) == 2
    end = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        # a zombie that nobody reaps has ended, too
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
