"""Chat templates: exact ids, the template's own words, and no way to run code or run for ever."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import DataError, ModelError, UsageError
from quantkit.server import create_app
from quantkit.server.render import Renderer, read_template
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.serving import SETTINGS, error_of, make_tokenizer, serving, wait_for
from tests.helpers.tiny import TEMPLATE, tiny_tokenizer

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
BOS_TEMPLATE = "{{ bos_token }}{{ bos_token }}" + TEMPLATE
T = TypeVar("T")


def rendering(source: str, use: Callable[[Renderer], Coroutine[Any, Any, T]], **limits: Any) -> T:
    renderer = Renderer(source, SETTINGS, **limits)
    try:
        return asyncio.run(use(renderer))
    finally:
        renderer.close()


@pytest.mark.parametrize("template", [TEMPLATE, BOS_TEMPLATE])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_exact_ids(template: str, adds_bos: bool) -> None:
    """In chat only the template writes a start token, in completions only the tokenizer."""
    from tokenizers.processors import TemplateProcessing

    backend = tiny_tokenizer()
    if adds_bos:
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = Tokenizer(backend, settings=SETTINGS, template=template)
    with FakeEngine(["x"]) as engine:
        app = create_app(engine, tokenizer, model_name="t", max_model_len=64)
        with serving(app) as client:
            chat = client.post(CHAT, json={"messages": [USER]}).json()
            client.post("/v1/completions", json={"prompt": "Hi"})
    ids, plain = (request.prompt_ids for request in engine.requests)
    assert ids == tokenizer.encode_chat([USER], add_generation_prompt=True)
    assert chat["usage"]["prompt_tokens"] == len(ids)
    assert ids.count(0) == (2 if template == BOS_TEMPLATE else 0)
    assert plain == tokenizer.encode("Hi")
    assert plain.count(0) == adds_bos


def test_variables_reach_the_template() -> None:
    async def use(renderer: Renderer) -> str:
        return await renderer.render([USER], {"style": "short"})

    assert (
        rendering("{{ style }} {{ messages[0].content }} {{ eos_token }}", use) == "short Hi </s>"
    )


ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate: user, assistant') }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "roles", "words"),
    [
        (ALTERNATE, ["user", "user"], "Roles must alternate: user, assistant"),
        (ALTERNATE, ["assistant"], "Roles must alternate: user, assistant"),
        ("{{ nothing.strip() }}", ["user"], "'nothing' is undefined"),
        ("{{ messages[5].content.strip() }}", ["user"], "has no"),
        ("{{ 1 / 0 }}", ["user"], "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ["user"], "failed"),
        ("{{ {}['a']['b'] }}", ["user"], "failed"),
    ],
)
def test_template_errors(template: str, roles: list[str], words: str) -> None:
    with FakeEngine(["x"]) as engine:
        app = create_app(engine, make_tokenizer(template), model_name="t", max_model_len=64)
        with serving(app) as client:
            messages = [{"role": role, "content": "Hi"} for role in roles]
            for streamed in (False, True):
                body = {"messages": messages, "stream": streamed}
                response = client.post(CHAT, json=body)
                assert response.status_code == 400
                error = error_of(response)
                assert error["param"] == "messages"
                assert words in error["message"]
                assert ".py" not in error["message"]
            body = {"prompt": "Hi"}
            assert client.post("/v1/completions", json=body).status_code == 200
    assert not engine.requests[1:]


def test_syntax_error_is_found_at_the_start() -> None:
    with FakeEngine(["x"]) as engine, pytest.raises(ModelError, match="line 2"):
        create_app(engine, make_tokenizer("a\n{% for %}"), model_name="t", max_model_len=64)


def test_no_template() -> None:
    with FakeEngine(["x"]) as engine:
        app = create_app(engine, make_tokenizer(None), model_name="t", max_model_len=64)
        with serving(app) as client:
            response = client.post(CHAT, json={"messages": [USER]})
            assert response.status_code == 400
            assert error_of(response)["code"] == "no_chat_template"


def test_template_of_the_operator_wins() -> None:
    template = "{{ messages[0].content }}"
    with FakeEngine(["x"]) as engine:
        app = create_app(
            engine, make_tokenizer(), model_name="t", max_model_len=64, chat_template=template
        )
        with serving(app) as client:
            client.post(CHAT, json={"messages": [USER]})
    assert engine.requests[0].prompt_ids == make_tokenizer().encode("Hi", special=False)


RUNAWAYS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ 'x'.ljust(10**10) }}",
    "{% set n = namespace(s='x') %}{% for i in range(50) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{{ 'x'|center(10**10) }}",
]


@pytest.mark.parametrize("template", RUNAWAYS)
def test_runaways_are_stopped(template: str) -> None:
    """Constant expressions run away when the template is compiled, others when it is rendered."""
    start = time.monotonic()
    with pytest.raises((DataError, ModelError), match=r"took more|ran out|wrote more"):
        rendering(template, lambda renderer: renderer.render([USER], {}), seconds=1.0)
    assert time.monotonic() - start < 20


def test_a_runaway_harms_no_later_request() -> None:
    template = "{% if messages[0].content == 'bad' %}" + RUNAWAYS[0] + "{% endif %}fine"

    async def use(renderer: Renderer) -> str:
        bad = renderer.render([{"role": "user", "content": "bad"}], {})
        good = renderer.render([USER], {})
        results = await asyncio.gather(bad, good, return_exceptions=True)
        assert isinstance(results[0], DataError)
        return str(results[1])

    assert rendering(template, use, seconds=1.0) == "fine"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['__builtins__'].open('MARK', 'w') }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ ''|attr('__class__') }}{{ messages.__class__.__base__ }}",
    "{{ self.__init__.__globals__ }}",
    "{% set x = messages.append(1) %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_no_way_out(template: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    async def use(renderer: Renderer) -> str:
        try:
            return await renderer.render([USER], {})
        except DataError as error:
            return error.message

    text = rendering(template.replace("MARK", str(marker)), use)
    assert not marker.exists()
    assert len(text) < 300
    assert "builtins" not in text
    assert "subclass" not in text


def test_the_process_ends_with_its_renderer() -> None:
    renderer = Renderer("{{ messages }}", {})
    assert asyncio.run(renderer.render([USER], {}))
    process = renderer._process
    assert process is not None
    assert os.path.exists(f"/proc/{process.pid}")
    del renderer
    wait_for(lambda: process.poll() is not None)


def test_read_template(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}", encoding="utf-8")
    assert read_template(file) == read_template(str(file)) == "{{ messages }}"
    assert read_template("{{ x }}") == "{{ x }}"
    assert read_template(None) is None
    with pytest.raises(UsageError, match=r"missing\.jinja"):
        read_template("missing.jinja")
