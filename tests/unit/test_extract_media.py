"""Sound and film: what is told of them, and how little is read for it."""

from __future__ import annotations

import pytest

from frazil.extract import Extractor, Limits, TooMuch, Unsupported
from frazil.extract.media.audio import AUDIO
from frazil.extract.media.isobmff import place
from frazil.extract.media.video import VIDEO
from frazil.extract.window import Damaged
from tests import extract_documents as made
from tests.extract_kit import MemoryItem, look

TAGS = {"TIT2": "Song", "TPE1": "Ada", "TALB": "Engine", "TDRC": "1999-03", "TCON": "Jazz", "TRCK": "3/12"}
VORBIS = {"TITLE": "Song", "artist": "Ada", "DATE": "2001", "TRACKNUMBER": "4"}


def test_an_mp3_tells_its_length_and_its_tags_but_not_its_cover():
    found = look(AUDIO, made.mp3(tags=TAGS, cover=b"\x89PNG" + bytes(1000)))
    assert found == {
        "container": "mp3",
        "duration": 2.606,
        "codec": "mp3",
        "bit_rate": 128000,
        "sample_rate": 44100,
        "channels": 1,
        "title": "Song",
        "author": "Ada",
        "album": "Engine",
        "year": 1999,
        "genre": "Jazz",
        "track": 3,
        "cover": True,
    }


def test_an_mp3_of_changing_bit_rate_is_as_long_as_its_first_frame_says():
    sound = bytearray(made.mp3(frames=100))
    sound[36:48] = b"Xing\0\0\0\1" + (1000).to_bytes(4, "big")
    found = look(AUDIO, bytes(sound))
    assert found["duration"] == pytest.approx(1000 * 1152 / 44100, abs=0.001)
    assert found["bit_rate"] == round(len(sound) * 8 / (1000 * 1152 / 44100))


def test_an_id3v1_tag_at_the_end_is_read():
    tag = b"TAG" + b"Old song".ljust(30, b"\0") + b"Bob".ljust(30, b"\0") + bytes(30) + b"1987" + bytes(31)
    found = look(AUDIO, made.mp3() + tag)
    assert (found["title"], found["author"], found["year"], found["duration"]) == ("Old song", "Bob", 1987, 2.606)


@pytest.mark.parametrize(
    ("sound", "wanted"),
    [
        (
            made.wav(),
            {"container": "wav", "codec": "pcm", "duration": 1.0, "sample_rate": 8000, "channels": 2, "bits": 16},
        ),
        (made.aiff(), {"container": "aiff", "codec": "pcm", "duration": 0.5, "sample_rate": 44100, "title": "Bell"}),
        (
            made.flac(tags=VORBIS, picture=True),
            {"codec": "flac", "duration": 3.0, "channels": 2, "bits": 16, "author": "Ada", "year": 2001, "cover": True},
        ),
        (made.opus(tags=VORBIS), {"container": "ogg", "codec": "opus", "duration": 2.0, "title": "Song", "track": 4}),
        (made.aac(), {"container": "aac", "codec": "aac", "duration": 1.161, "sample_rate": 44100, "channels": 2}),
        (made.wma(), {"container": "asf", "codec": "wma", "duration": 3.0, "title": "Song", "author": "Ada"}),
        (made.mp4(brand=b"M4A ", title="Tune"), {"container": "mp4", "codec": "aac", "duration": 4.0, "title": "Tune"}),
    ],
    ids=["wav", "aiff", "flac", "opus", "aac", "wma", "m4a"],
)
def test_every_container_of_sound_tells_its_form(sound: bytes, wanted: dict[str, object]):
    found = look(AUDIO, sound)
    assert {name: found.get(name) for name in wanted} == wanted


def test_a_film_tells_size_codecs_time_and_place():
    assert look(VIDEO, made.mp4(title="Paris")) == {
        "container": "mp4",
        "duration": 4.0,
        "width": 640,
        "height": 360,
        "codec": "h264",
        "audio_codec": "aac",
        "frame_rate": 25.0,
        "bit_rate": pytest.approx(10_000, rel=0.1),
        "sample_rate": 48000,
        "channels": 2,
        "taken_at": "2024-05-01T12:34:56",
        "taken_offset": "+00:00",
        "latitude": 48.85,
        "longitude": 2.35,
        "title": "Paris",
        "cover": False,
    }


def test_the_camera_s_own_clock_and_place_come_before_those_of_the_file():
    told = {
        "com.apple.quicktime.creationdate": "2024-05-01T14:34:56+0200",
        "com.apple.quicktime.location.ISO6709": "-33.8568+151.2153+012.500/",
        "com.apple.quicktime.make": "Apple",
        "com.apple.quicktime.model": "iPhone 15",
    }
    found = look(VIDEO, made.mp4(brand=b"qt  ", quicktime=told, created=0))
    wanted = {
        "container": "quicktime",
        "taken_at": "2024-05-01T14:34:56",
        "taken_offset": "+02:00",
        "latitude": -33.8568,
        "longitude": 151.2153,
        "altitude": 12.5,
        "camera": "Apple iPhone 15",
    }
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("created", [0, 1, made.EPOCH_1904])
def test_a_clock_that_was_never_set_tells_no_time(created: int):
    assert "taken_at" not in look(VIDEO, made.mp4(created=created))


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("+48.8500+002.3500/", (48.85, 2.35, None)),
        ("+4851.00+00221.00/", (48.85, 2.35, None)),
        ("-485100.0-0022100.0+35/", (-48.85, -2.35, 35.0)),
        ("+00.0000+000.0000/", None),
        ("+98.0000+002.3500/", None),
        ("somewhere", None),
        ("", None),
    ],
)
def test_places_in_every_form_of_iso_6709(told: str, wanted: object):
    assert place(told) == wanted


def test_a_film_that_is_turned_is_told_as_shown():
    film = made.mp4().replace(made.MATRIX, made.TURNED)
    found = look(VIDEO, film)
    assert (found["width"], found["height"], found["rotation"]) == (360, 640, 90)


@pytest.mark.parametrize(
    ("film", "wanted"),
    [
        (
            made.matroska(),
            {"container": "matroska", "codec": "vp9", "width": 320, "height": 180, "duration": 2.5, "title": "A walk"},
        ),
        (
            made.avi(),
            {"container": "avi", "codec": "mjpeg", "width": 320, "height": 240, "duration": 2.0, "frame_rate": 25.0}
            | {"taken_at": "2024-05-01T12:34:56", "taken_offset": None, "title": "Beach"},
        ),
    ],
    ids=["matroska", "avi"],
)
def test_every_container_of_film_tells_its_form(film: bytes, wanted: dict[str, object]):
    found = look(VIDEO, film)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("extractor", "data"),
    [
        (VIDEO, made.mp4(media=50 << 20)),
        (VIDEO, made.mp4(media=50 << 20, front=True)),
        (AUDIO, made.mp3(frames=120_000)),
        (AUDIO, made.wav(seconds=1500)),
    ],
    ids=["index at the end", "index in front", "mp3", "wav"],
)
def test_of_fifty_megabytes_less_than_a_hundred_thousand_bytes_are_read(extractor: Extractor, data: bytes):
    assert len(data) > 45_000_000
    item = MemoryItem(data)
    assert extractor.look(item)["duration"] > 3
    assert item.bytes_read < 100_000
    assert len(item.reads) <= 6


@pytest.mark.parametrize("length", [9, 40, 4000, 4130, 4200, 5000])
def test_a_film_that_is_cut_off_says_so(length: int):
    with pytest.raises(Damaged, match="moov"):
        look(VIDEO, made.mp4()[:length], detected_type="video/mp4")


def test_a_playlist_is_not_followed_and_neither_is_one_that_is_a_cover():
    """Libraries that know every format open what such a list names: local files, and URLs inside of the network."""
    playlist = b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:1/latest/meta-data\n#EXT-X-ENDLIST\n"
    with pytest.raises(Unsupported):
        look(AUDIO, playlist, detected_type="audio/x-mpegurl")
    assert look(AUDIO, made.mp3(cover=playlist))["cover"] is True


def test_ten_megabytes_of_tags_become_a_short_title():
    item = MemoryItem(made.mp3(tags={"TIT2": "long " * 2_000_000, "TPE1": "Ada"}))
    found = AUDIO.look(item)
    assert len(found["title"]) <= 4096
    assert found["author"] == "Ada"
    assert item.bytes_read < 300_000


def test_a_tag_that_is_no_unicode_is_still_a_text():
    found = look(AUDIO, made.mp3(tags={"TIT2": "a\ud800b"}))
    assert found["title"].encode() and found["title"].startswith("a")


def test_a_file_of_a_million_boxes_is_too_much():
    with pytest.raises(TooMuch):
        look(VIDEO, made.box(b"ftyp", b"isom") + made.box(b"free") * 30_000, detected_type="video/mp4")


def test_what_would_have_to_be_read_beyond_the_limit_is_not_read():
    boxes = b"".join(made.box(b"free", bytes(40_000)) for _ in range(50))
    item = MemoryItem(boxes, detected_type="video/mp4", limits=Limits(max_range_bytes=200_000))
    with pytest.raises(TooMuch):
        VIDEO.look(item)
    assert item.bytes_read <= 250_000


@pytest.mark.parametrize("extractor", [AUDIO, VIDEO])
def test_an_empty_object_is_unsupported(extractor: Extractor):
    with pytest.raises(Unsupported, match="empty"):
        look(extractor, b"", detected_type="audio/mpeg")
