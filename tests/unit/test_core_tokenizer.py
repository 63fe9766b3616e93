"""Ids and rendered chats equal transformers'; templates cannot reach out of their sandbox."""

import json
import time

import pytest
from transformers import AutoTokenizer

from quantkit.core.chat import ChatTemplate
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import DataError, ModelError
from quantkit.formats import open_model
from tests.helpers.tiny import tiny_model

TEXTS = [
    "",
    " ",
    "plain words",
    "  two  spaces  and 12345 digits\t\n\n",
    "é漢字🙂",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x**2\r\n",
]
DIALOG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <|im_start|> there"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model("llama", tmp_path_factory.mktemp("tok") / "m")


def test_ids_equal_transformers(folder) -> None:
    mine = Tokenizer.from_checkpoint(open_model(folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert mine.encode(text) == theirs(text).input_ids
        assert mine.decode(mine.encode(text)) == theirs.decode(theirs(text).input_ids)
    for prompt in (True, False):
        assert mine.encode_chat(DIALOG, add_generation_prompt=prompt) == (
            theirs.apply_chat_template(
                DIALOG, add_generation_prompt=prompt, tokenize=True, return_dict=False
            )
        )
    assert mine.eos_ids == (1, 4)
    assert mine.vocab_size == len(theirs)


def test_a_start_token_is_added_once(folder, tmp_path) -> None:
    from tokenizers import processors

    copy = tmp_path / "bos"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    tok = Tokenizer.from_checkpoint(open_model(folder)).backend
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    tok.save(str(copy / "tokenizer.json"))
    (copy / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    mine = Tokenizer.from_checkpoint(open_model(copy))
    assert mine.encode("hi")[:1] == [0]
    ids = mine.encode_chat(DIALOG)
    assert ids.count(0) == 1
    assert mine.encode("hi", special=False)[0] != 0


def test_missing_and_damaged_files_are_named(folder, tmp_path) -> None:
    copy = tmp_path / "m"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match="tokenizer_config"):
        Tokenizer.from_checkpoint(open_model(copy))
    (copy / "tokenizer_config.json").write_text("{}")
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        Tokenizer.from_checkpoint(open_model(copy))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_checkpoint(open_model(copy))


def render(source: str, messages=None) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or DIALOG)


def test_the_templates_own_words_come_through() -> None:
    with pytest.raises(DataError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="undefined"):
        render("{{ nothing.strip() }}")
    with pytest.raises(ModelError, match="line 2"):
        render("ok\n{% for x in %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% set x = messages.append(1) %}{{ x }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'x' * 9 }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_stay_in_their_sandbox(source, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    with pytest.raises(DataError):
        render(source)
    assert time.monotonic() - started < 5
    assert not (tmp_path / "MARK").exists()


def test_helpers_that_templates_rely_on() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == json.dumps({"a": "<é>"}, ensure_ascii=False)
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    once = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}"
    assert render(once) == "x"
    assert render("{{ tools is none }}{{ bos_token }}") == "True<s>"
