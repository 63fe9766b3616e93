"""A real (tiny, random) model behind the real server: transformers says what it must answer."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.helpers.serving import error_of, serve_program, stream
from tests.helpers.tiny import tiny_model

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why 17?"}]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model("llama", tmp_path_factory.mktemp("models") / "tiny-llama")
    file = folder / "generation_config.json"
    defaults = {"temperature": 0.25, "top_k": 7, "top_p": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | defaults), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with (
        serve_program(folder, max_num_seqs=4, max_model_len=128) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


def reference(folder: Path, ids: list[int]) -> list[int]:
    """Greedy tokens of transformers in float64."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    out = list(ids)
    with torch.inference_mode():
        for _ in range(GREEDY["max_tokens"]):
            out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))
    return out[len(ids) :]


def test_chat_equals_transformers(client: httpx.Client, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    expected = tokenizer.decode(reference(folder, ids), skip_special_tokens=True)
    body = {"messages": MESSAGES, **GREEDY}
    answer = client.post(CHAT, json=body).json()
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] == 12
    chunks = stream(client, CHAT, body)[:-1]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == expected


def test_completion_equals_transformers(client: httpx.Client, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("import json\n")["input_ids"]
    expected = tokenizer.decode(reference(folder, ids), skip_special_tokens=True)
    for prompt in ("import json\n", ids):
        answer = client.post(PLAIN, json={"prompt": prompt, **GREEDY}).json()
        assert answer["choices"][0]["text"] == expected
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_cached_tokens_are_reported(client: httpx.Client) -> None:
    body = {"prompt": list(range(100, 164)), **GREEDY}
    answers = [client.post(PLAIN, json=body).json() for _ in range(2)]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < 64


def test_names_defaults_and_limits(client: httpx.Client, folder: Path) -> None:
    (card,) = client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny-llama"
    assert card["max_model_len"] == 128
    assert card["sampling_defaults"]["temperature"] == 0.25
    assert card["sampling_defaults"]["top_k"] == 7
    assert card["sampling_defaults"]["top_p"] == 1.0
    for name in ("tiny-llama", str(folder)):
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        assert client.post(PLAIN, json=body).status_code == 200
    for length, status in ((127, 200), (128, 400), (5000, 400)):
        assert client.post(PLAIN, json={"prompt": [9] * length}).status_code == status
    error = error_of(client.post(PLAIN, json={"prompt": [9] * 128}))
    assert error["code"] == "context_length_exceeded"


def test_answers_do_not_depend_on_neighbors(client: httpx.Client) -> None:
    """Greedy and seeded answers are the same alone and beside fifteen others."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "def f(", **GREEDY},
        {"prompt": "def f(", **GREEDY, "temperature": 1, "seed": 1},
        {"prompt": "import", **GREEDY, "temperature": 1, "seed": 2, "max_tokens": 30},
        {"messages": MESSAGES, **GREEDY, "temperature": 1, "seed": 3},
    ]

    def ask(body: dict[str, Any]) -> Any:
        path = CHAT if "messages" in body else PLAIN
        choice = client.post(path, json=body).json()["choices"][0]
        return choice.get("text") or choice["message"]["content"]

    alone = [ask(body) for body in bodies]
    together: list[Any] = [None] * 16
    threads = [
        threading.Thread(
            target=lambda at: together.__setitem__(at, ask(bodies[at % 4])), args=(at,)
        )
        for at in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone * 4
