"""Words of running text, in several scripts, and the units of the words of files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozebert.finetuning.words import unit_bounds, word_bounds


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_words_cover_every_character_that_is_not_a_space(text: str) -> None:
    bounds = word_bounds(text)
    covered = [position for start, end in bounds for position in range(start, end)]
    assert covered == [position for position, character in enumerate(text) if not character.isspace()]
    assert all(start < end for start, end in bounds)


def test_words_of_several_scripts() -> None:
    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in word_bounds(text)]

    assert words("naïve cafés, 3.5") == ["naïve", "cafés", ",", "3", ".", "5"]
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert words("我爱 Python3") == ["我", "爱", "Python3"]
    assert words("한국어 문장") == ["한국어", "문장"]
    assert words("サーバーAWS人々ABC") == ["サ", "ー", "バ", "ー", "AWS", "人", "々", "ABC"]
    assert words("ที่นี่") == ["ที่", "นี่"]
    # Tibetan with its sign between syllables, Javanese, half-width kana
    assert words("བོད་ཡིག") == ["བོ", "ད", "་", "ཡི", "ག"]
    assert words("\ua997\ua9ae") == ["\ua997", "\ua9ae"]
    assert words("\uff76\uff9e\uff72\uff84\uff9e") == ["\uff76", "\uff9e", "\uff72", "\uff84", "\uff9e"]
    # Letters for private use, as those of medieval fonts
    assert words("qu\ue8bfd dicit") == ["qu\ue8bfd", "dicit"]
    # A sign keeps its marks, joiners and skin tones, and a letter behind them begins a word.
    assert words("❤\ufe0fParis 👩\u200d👩\u200d👧 👍🏽ok") == ["❤\ufe0f", "Paris", "👩\u200d👩\u200d👧", "👍🏽", "ok"]


@pytest.mark.parametrize(
    ("word", "units"),
    [
        ("เชียงใหม่", ["เ", "ชี", "ย", "ง", "ใ", "ห", "ม่"]),
        ("東京都", ["東", "京", "都"]),
        ("サーバー", ["サ", "ー", "バ", "ー"]),
        ("京\u200b都", ["京\u200b", "都"]),
        ("AWS社", ["AWS", "社"]),
        ("第3.5-b版", ["第", "3.5-b", "版"]),
        ("2 万", ["2", "万"]),
    ],
)
def test_words_of_files_are_cut_at_the_letters_of_unspaced_scripts(word: str, units: list[str]) -> None:
    assert [word[start:end] for start, end in unit_bounds(word)] == units


@pytest.mark.parametrize(
    "word", ["didn't", "3.5", "naïve-été", "New York", " a", "हिन्दी-भाषा", "한국어", "👍🏽👍🏽", "、。", "\u200b"]
)
def test_other_words_of_files_stay_whole(word: str) -> None:
    assert unit_bounds(word) == [(0, len(word))]


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("東京サーのีัใม่ำaé3.-' \u200b\u200d\u0301👍🏽"), max_size=12))
def test_words_of_running_text_are_not_cut_again(text: str) -> None:
    for start, end in word_bounds(text):
        assert unit_bounds(text[start:end]) == [(0, end - start)]
