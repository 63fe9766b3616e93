"""Every verb on tiny models, as people and as programs read it."""

import io
import json
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.helpers.cli import run_cli, start_cli
from tests.helpers.tiny import TEXT, tiny_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a text."""
    root = tmp_path_factory.mktemp("verbs")
    tiny_model("llama", root / "good")
    (root / "text.txt").write_text(TEXT[:6000], encoding="utf-8")
    return root


def test_inspect(capsys: Capture, root: Path) -> None:
    document = run_cli(capsys, "inspect", root / "good", "--json").document
    result = document["result"]
    assert result["format"] == "hf"
    assert result["architecture"] == "llama"
    assert result["bits_per_weight"] == 32
    assert result["parameters"] == sum(t["bytes"] for t in result["tensors"]) // 4
    assert result["types"] == {
        "F32": {
            "tensors": len(result["tensors"]),
            "parameters": result["parameters"],
            "bytes": result["bytes"],
        }
    }
    assert result["tokenizer"]["has_chat_template"] is True
    assert result["tokenizer"]["eos_ids"] == [1, 4]
    assert result["quantkit_json"] is None
    text = run_cli(capsys, "inspect", root / "good").out
    assert re.search(r"model\.embed_tokens\.weight +512x64 +F32 +131072\n", text)
    assert re.search(r"bits per weight +32\.000\n", text)


def test_inspect_of_a_quantized_model(capsys: Capture, root: Path, tmp_path: Path) -> None:
    plain = ("-m", "rtn", "--set", "scale_search=none", "-g", "32")
    assert run_cli(capsys, "quantize", root / "good", "-o", tmp_path / "q", *plain).code == 0
    result = run_cli(capsys, "inspect", tmp_path / "q", "--json").document["result"]
    assert result["quant_method"] == "gptq"
    assert 4.5 < result["bits_per_weight_body"] < 6 < result["bits_per_weight"]
    assert result["quantkit_json"]["recipe"]["methods"][0]["name"] == "rtn"
    linear = next(t for t in result["tensors"] if t["name"].endswith("0.mlp.up_proj.weight"))
    assert linear["scheme"] == "w4a16-g32"
    assert linear["shape"] == [192, 64]


def test_inspect_survives_a_damaged_tokenizer(capsys: Capture, tmp_path: Path) -> None:
    model = tiny_model("llama", tmp_path / "m")
    (model / "tokenizer.json").write_text("{", encoding="utf-8")
    (model / "chat_template.jinja").write_text("{{ 1 / 0 }}", encoding="utf-8")
    result = run_cli(capsys, "inspect", model, "--json").document["result"]
    assert "damaged" in result["tokenizer"]["error"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "gptq"),
        ("formats", "gguf"),
        ("archs", "qwen3"),
        ("kernels", "reference.linear"),
    ],
)
def test_list(capsys: Capture, kind: str, name: str) -> None:
    rows = run_cli(capsys, "list", kind, "--json").document["result"][kind]
    assert name in [row["name"] for row in rows]
    assert all(row["description"] for row in rows)
    text = run_cli(capsys, "list", kind).out
    assert text.splitlines()[0].split()[0] == "name"
    assert f"\n{name} " in text


def test_list_recipes(capsys: Capture) -> None:
    for row in run_cli(capsys, "list", "recipes", "--json").document["result"]["recipes"]:
        assert row["description"]
        outcome = run_cli(capsys, "quantize", "org/x", "-r", row["name"], "--print-recipe")
        assert outcome.code == 0, outcome.err


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_EVAL_SEQ_LEN", "64")
    monkeypatch.setenv("QUANTKIT_SERVE_API_KEY", "topsecret")
    result = run_cli(capsys, "doctor", "--json").document["result"]
    assert result["versions"]["torch"]
    assert result["machine"]["cores"] >= 1
    assert result["machine"]["memory bytes"] > 0
    assert result["variables"]["QUANTKIT_EVAL_SEQ_LEN"] == "64"
    assert result["variables"]["QUANTKIT_SERVE_API_KEY"] == "***"
    for problem in {row["problem"] for row in result["kernels"]}:
        rows = [row for row in result["kernels"] if row["problem"] == problem]
        assert [row["refused"] for row in rows if row["chosen"]] == [None]
    text = run_cli(capsys, "doctor").out
    assert "chosen" in text
    assert "topsecret" not in text


def test_print_recipe_needs_no_model(capsys: Capture) -> None:
    flags = ("-b", "3", "-g", "32", "--keep", "lm_head", "--seq-len", "2K", "--shard-size", "1GB")
    outcome = run_cli(capsys, "quantize", "org/x", *flags, "--print-recipe", "--json")
    recipe = outcome.document["result"]["recipe"]
    assert recipe["scheme"] == "w3a16-g32"
    assert recipe["rules"] == [{"pattern": "lm_head", "scheme": "keep"}]
    assert recipe["calibration"]["seq_len"] == 2048
    assert recipe["output"]["shard_bytes"] == 10**9
    assert outcome.document["recipe_hash"]
    assert (
        "scheme: w3a16-g32\n" in run_cli(capsys, "quantize", "org/x", *flags, "--print-recipe").out
    )


def test_dry_run_writes_nothing(capsys: Capture, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "q"
    outcome = run_cli(capsys, "quantize", root / "good", "-o", target, "--dry-run")
    assert outcome.code == 0
    assert list(tmp_path.iterdir()) == []
    assert re.search(r"model\.layers\.0\.mlp\.up_proj\.weight +F32 +w4a16-g64", outcome.out)
    assert "bits per weight of the linears" in outcome.out
    outcome = run_cli(capsys, "quantize", root / "good", "-o", target, "--dry-run", "--json")
    assert outcome.document["result"]["plan"]


def test_eval_and_its_gates(capsys: Capture, root: Path, tmp_path: Path) -> None:
    flags = ("--text", root / "text.txt", "--seq-len", "32", "--limit", "3", "--baseline")
    report, page = tmp_path / "figures.json", tmp_path / "figures.html"
    passed = run_cli(
        capsys,
        *("eval", root / "good", *flags, root / "good", "--fail-if", "kl_mean > 0.05"),
        *("--output", report, "--html", page),
    )
    assert passed.code == 0, passed.err
    assert "top-1 agreement" in passed.out
    assert re.search(r"kl_mean > 0\.05 .* passed\n", passed.out)
    assert json.loads(report.read_text(encoding="utf-8"))["num_windows"] == 3
    assert "</html>" in page.read_text(encoding="utf-8")
    failed = run_cli(
        capsys, "eval", root / "good", *flags, root / "good", "--fail-if", "ppl > 1", "--json"
    )
    failed.assert_failed(5, "ppl > 1")
    assert failed.document["status"] == "failed"
    assert failed.document["error"]["type"] == "CheckFailed"
    assert failed.document["result"]["kl_mean"] == pytest.approx(0, abs=1e-6)
    assert failed.document["result"]["num_windows"] == 3


def test_chat_through_a_pipe(capsys: Capture, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for flags in ([], ["--json"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
        outcome = run_cli(
            capsys,
            *("chat", root / "good", "--max-tokens", "8", "--temperature", "0", *flags),
            *("--system", "Be brief."),
        )
        assert outcome.code == 0, outcome.err
        answers.append(outcome)
    assert answers[1].document["result"]["answer"] == answers[0].out.removesuffix("\n")
    assert answers[1].document["result"]["finish_reason"] in ("stop", "length")


def test_chat_needs_a_message(capsys: Capture, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    run_cli(capsys, "chat", root / "good").assert_failed(2, "holds no message")


def test_serve_and_chat_with_it(
    capsys: Capture, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start_cli("serve", root / "good", "--port", "0", "--api-key", "sesame")
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            pytest.fail("".join(lines))
        url = found[0]
        assert httpx.get(f"{url}/health").status_code == 200
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
        run_cli(capsys, "chat", url).assert_failed(2, "401", "--api-key")
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
        flags = ("--api-key", "sesame", "--max-tokens", "4", "--temperature", "0", "--json")
        outcome = run_cli(capsys, "chat", url, *flags)
        assert outcome.document["result"]["finish_reason"] in ("stop", "length")
        assert "sesame" not in outcome.out
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err


def test_local_work_calls_nobody(
    capsys: Capture, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb on a local folder, with a socket that cannot connect and notes who tried."""
    calls: list[object] = []

    def connect(self: socket.socket, address: object) -> None:
        calls.append(address)
        raise ConnectionRefusedError(address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
    good, text = root / "good", root / "text.txt"
    for command in (
        ("inspect", good),
        ("convert", good, "-o", tmp_path / "m.gguf", "-f", "gguf"),
        ("quantize", good, "-o", tmp_path / "q", "-d", text, "--num-samples", "2"),
        ("eval", good, "--text", text, "--limit", "1", "--seq-len", "32"),
        ("chat", good, "--max-tokens", "2"),
        ("doctor",),
    ):
        outcome = run_cli(capsys, *command)
        assert outcome.code == 0, outcome.err
    assert calls == []
