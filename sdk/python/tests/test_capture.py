import random

from esker._capture import Capture, Utf8Stream


def test_characters_split_between_pieces_arrive_whole():
    text = "a\u00e9\u20ac\U0001f600" * 50
    data = text.encode()
    for seed in range(20):
        rng, stream, out, at = random.Random(seed), Utf8Stream(), "", 0
        while at < len(data):
            size = rng.randint(1, 5)
            out += stream.feed(data[at : at + size])
            at += size
        assert out + stream.finish() == text


def test_bytes_that_are_not_utf8_become_replacement_characters():
    stream = Utf8Stream()
    assert stream.feed(b"a\xffb\xe2\x82") + stream.finish() == "a\ufffdb\ufffd"


def test_the_head_is_kept_and_the_rest_counted():
    capture = Capture(limit=5)
    assert capture.add(0, b"abc") == b"abc"
    assert not capture.truncated
    assert capture.add(3, b"defg") == b"defg"
    capture.add(7, b"hij")
    assert (capture.content(), capture.truncated, capture.position) == (b"abcde", True, 10)


def test_exactly_the_limit_is_not_truncated():
    capture = Capture(limit=3)
    capture.add(0, b"abc")
    assert not capture.truncated


def test_repeated_bytes_are_dropped():
    capture = Capture()
    capture.add(0, b"abcd")
    assert capture.add(2, b"cdEF") == b"EF"
    assert capture.add(0, b"abcd") == b""
    assert capture.content() == b"abcdEF"


def test_a_gap_is_truncation():
    capture = Capture()
    capture.add(0, b"ab")
    capture.add(10, b"kl")
    assert (capture.content(), capture.truncated, capture.position) == (b"ab", True, 12)
