"""Laws of stopping: the first event in the text ends it, however the tokens arrive."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.detokenizer import Pieces
from antiphon.params import SamplingParams
from antiphon.stopping import Cut, Stopper

# Pieces of bytes, so that characters may lie across tokens; one shows nothing.
BYTES = [
    b"a",
    b"b",
    b"ab",
    b"",
    b"ba\n",
    b"\n",
    b"\xf0\x9f",
    b"\x98\x80",
    b"a\xc3",
    b"\xa9b",
    b"\x80",
]
EOS = len(BYTES)
STOP = EOS + 1


class ByteDetokenizer:
    """A detokenizer of its own kind: Python's incremental UTF-8 decoder."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(BYTES[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def decode(tokens: list[int], final: bool) -> str:
    detokenizer = ByteDetokenizer()
    text = "".join(detokenizer.push(token) for token in tokens)
    return text + detokenizer.flush() if final else text


def naive(tokens, stops, stop_ids, eos, max_tokens):
    """The rules, by decoding everything again at every token: (length, text, why, by what)."""

    def matched(count, text):
        found = [
            (start + len(stop), start, stop)
            for stop in stops
            for start in range(len(text))
            if text.startswith(stop, start)
        ]
        if not found:
            return None
        _, start, stop = min(found)
        enough = [k for k in range(count + 1) if len(decode(tokens[:k], False)) >= start]
        return (min([*enough, count]), text[:start], "stop", stop)

    for count, token in enumerate(tokens, 1):
        if token in eos or token in stop_ids:
            text = decode(tokens[: count - 1], True)
            ended = (count, text, "stop", None if token in eos else token)
            return matched(count - 1, text) or ended
        ended = matched(count, decode(tokens[:count], False))
        if ended is None and count == max_tokens:
            text = decode(tokens[:count], True)
            ended = matched(count, text) or (count, text, "length", None)
        if ended is not None:
            return ended
    return None


def split(tokens, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    return [tokens[start:end] for start, end in pairwise(edges)]


token_lists = st.lists(st.integers(0, STOP), min_size=1, max_size=12)
long_token_lists = st.lists(st.integers(0, len(BYTES) - 1), min_size=1, max_size=16)
stop_sets = st.lists(st.text("ab\n😀é\ufffd", min_size=1, max_size=4), max_size=3)


@settings(max_examples=250)
@given(
    tokens=st.one_of(token_lists, long_token_lists),
    stops=stop_sets,
    stop_ids=st.sampled_from([(), (STOP,), (STOP, 5)]),
    ignore_eos=st.booleans(),
    max_tokens=st.integers(1, 16),
    cuts=st.sets(st.integers(0, 16)),
)
def test_the_end_is_the_naive_one_however_the_tokens_are_split(
    tokens, stops, stop_ids, ignore_eos, max_tokens, cuts
):
    """Guards every rule at once, inside a block and across its edges."""
    # Without EOS and stop ids in force their tokens are ordinary ones, and need bytes.
    tokens = [t for t in tokens if t < EOS or t in stop_ids or (t == EOS and not ignore_eos)]
    eos = frozenset() if ignore_eos else frozenset({EOS})
    params = SamplingParams(stop=tuple(stops), stop_token_ids=stop_ids, ignore_eos=ignore_eos)
    stopper = Stopper(ByteDetokenizer(), params, frozenset({EOS}), max_tokens)
    want = naive(tokens, stops, stop_ids, eos, max_tokens)

    shown, stable = "", 0
    for block in split(tokens, cuts):
        cut = stopper.push(block)
        shown += cut.text
        assert shown == stopper.text
        assert cut.length == stopper.length
        assert stable <= stopper.stable_length <= cut.length
        stable = stopper.stable_length
        if cut.finish_reason:
            break
    if want is None:
        assert stopper.finish_reason is None
        assert stopper.length == len(tokens)
        last = stopper.cancel()
        want = (len(tokens), decode(tokens, True), None, None)
        if "\ufffd" in "".join(stops):  # A replacement that the flush adds may complete a stop.
            want = (last.length, stopper.text, last.finish_reason, last.stop_reason)
        shown += last.text
    length, text, reason, stop_reason = want
    assert (stopper.length, shown) == (length, text)
    assert (stopper.finish_reason, stopper.stop_reason) == (reason, stop_reason)
    assert stopper.text == text
    assert stopper.stable_length == length


@settings(max_examples=100)
@given(tokens=long_token_lists, stops=stop_sets)
def test_text_is_shown_as_soon_as_no_stop_string_can_take_it_back(tokens, stops):
    """Guards streaming both ways: nothing is taken back, nothing is held without need."""
    stopper = Stopper(ByteDetokenizer(), SamplingParams(stop=tuple(stops)), frozenset(), 99)
    for count in range(1, len(tokens) + 1):
        cut = stopper.push(tokens[count - 1 : count])
        if cut.finish_reason:
            break
        text = decode(tokens[:count], False)
        held = text[len(stopper.text) :]
        assert text.startswith(stopper.text)
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[k:] for k in range(len(stopper.text))]
        assert not any(stop.startswith(tail) for stop in stops for tail in longer)
        ends = [len(decode(tokens[:k], False)) for k in range(count + 1)]
        # Stable are the tokens shown in full, without those that show nothing at the end: a
        # stop string may follow at once and leave them out.
        shown = len(stopper.text)
        stable = [k for k in range(1, count + 1) if ends[k] <= shown and ends[k - 1] < shown]
        assert stopper.stable_length == max(stable, default=0)


def stopper_of(pieces, max_tokens=99, eos=frozenset(), **params):
    return Stopper(Pieces(pieces), SamplingParams(**params), frozenset(eos), max_tokens)


def test_eos_stays_in_the_ids_and_not_in_the_text():
    """Guards the convention of vLLM and transformers."""
    stopper = stopper_of(["hi", "</s>"], eos={1})
    assert stopper.push([0, 1, 0]) == Cut(2, "hi", "stop", None)
    assert stopper.length == 2


def test_a_stop_token_is_reported_by_its_id():
    """Guards stop_reason: None is EOS alone."""
    stopper = stopper_of(["hi", "!"], stop_token_ids=(1,))
    assert stopper.push([0, 1]) == Cut(2, "hi", "stop", 1)


def test_ignored_eos_is_an_ordinary_token():
    """Guards benchmarks of fixed length."""
    stopper = stopper_of(["hi", "."], eos={1}, ignore_eos=True, max_tokens=3)
    assert stopper.push([1, 0, 1, 0]) == Cut(3, ".hi.", "length", None)


def test_a_stop_string_takes_back_tokens_of_earlier_pushes():
    """Guards usage and logprobs: they are cut where the text is."""
    stopper = stopper_of(["x", "E", "N", "D", ""], stop=("END",))
    assert stopper.push([0, 4, 1]) == Cut(3, "x", None, None)
    assert stopper.stable_length == 1
    assert stopper.push([2]) == Cut(4, "", None, None)
    assert stopper.push([3, 0]) == Cut(1, "", "stop", "END")


def test_a_token_shown_in_part_is_not_stable_yet():
    """Guards log-probabilities streamed beside the text."""
    stopper = stopper_of(["x", "yE"], stop=("END",))
    assert stopper.push([0, 1]) == Cut(2, "xy", None, None)
    assert stopper.stable_length == 1


def test_held_text_is_shown_when_it_turns_out_harmless():
    """Guards against losing the beginning of a stop string that never came."""
    stopper = stopper_of(["E", "N", "x"], stop=("END",))
    assert [stopper.push([token]).text for token in (0, 1, 0, 2)] == ["", "", "EN", "Ex"]
    assert stopper.stable_length == 4


@pytest.mark.parametrize(
    ("stops", "text", "winner"),
    [
        (("bc", "ab"), "", "ab"),  # ends first
        (("abcd", "bc"), "a", "bc"),  # ends first, though it starts later
        (("bcd", "abcd", "cd"), "", "abcd"),  # all end together: starts first
        (("d", "bc"), "a", "bc"),
        (("e",), "abcd", "e"),
    ],
)
def test_of_several_stop_strings_in_one_token_the_first_to_end_wins(stops, text, winner):
    """Guards independence of the order in which a user lists them."""
    for order in (stops, stops[::-1]):
        cut = stopper_of(["abcde"], stop=order).push([0])
        assert (cut.text, cut.stop_reason) == (text, winner)
        assert cut.length == bool(text)


def test_a_stop_on_the_very_last_token_beats_length():
    """Guards finish_reason at the limit."""
    assert stopper_of(["x", "."], 2, stop=(".",)).push([0, 1]) == Cut(1, "x", "stop", ".")
    assert stopper_of(["x", "."], 2, eos={1}).push([0, 1]) == Cut(2, "x", "stop", None)
    assert stopper_of(["x", "."], 2).push([0, 1]) == Cut(2, "x.", "length", None)


def test_length_shows_what_was_held():
    """Guards the end of the text when a stop string had begun."""
    assert stopper_of(["x", "E"], 2, stop=("END",)).push([0, 1]) == Cut(2, "xE", "length", None)


def test_cancel_shows_what_was_held_once():
    """Guards Ctrl-C: all that was generated is printed, and printed once."""
    stopper = stopper_of(["x", "E"], stop=("END",))
    assert stopper.push([0, 1]).text == "x"
    assert stopper.cancel() == Cut(2, "E", None, None)
    assert stopper.cancel() == Cut(2, "", None, None)
    assert (stopper.text, stopper.stable_length) == ("xE", 2)
    with pytest.raises(RuntimeError, match="the text has ended"):
        stopper.push([0])


def test_cancel_before_the_first_token():
    """Guards Ctrl-C during the prefill."""
    assert stopper_of(["x"]).cancel() == Cut(0, "", None, None)


def test_nothing_follows_the_end():
    """Guards against a loop that goes on after a finish."""
    stopper = stopper_of(["x"], 1)
    assert stopper.push([]) == Cut(0, "", None, None)
    stopper.push([0])
    with pytest.raises(RuntimeError, match="the text has ended"):
        stopper.push([])


def test_no_room_is_refused():
    """Guards against one token too many where the prompt fills the context."""
    with pytest.raises(ValueError, match="no room for any output"):
        stopper_of(["x"], 0)


def test_a_long_text_is_searched_once():
    """Guards linear time: the search must not begin at the start of the text each token."""
    pieces = Pieces(["no stop here "])
    stopper = Stopper(pieces, SamplingParams(stop=("xyz", "\n\n")), frozenset(), 20_000)
    searched = 0
    for _ in range(20_000):
        stopper.push([0])
        searched = max(searched, len(stopper._held))
    assert searched < 20
    assert len(stopper.text) == 20_000 * len("no stop here ")
