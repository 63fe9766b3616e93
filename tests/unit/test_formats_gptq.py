"""The gptq container: bits by hand, by a second reader, and back without loss."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from quantkit.core.output import PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import WHOLE_ROW, ScaleLevel, Scheme
from quantkit.errors import ModelError, UsageError
from quantkit.formats import FORMATS, open_model
from quantkit.formats.complete import check_complete
from tests.helpers.folders import (
    COMPANIONS,
    CONFIG,
    float_tensors,
    plan_for,
    quantize_linears,
    random_quantized,
    write_model,
)
from tests.helpers.gptq_numpy import decode

GPTQ = FORMATS.get("gptq")
Values = dict[str, torch.Tensor | QuantizedTensor]
UP = "model.layers.0.mlp.up_proj"


def same(path: Path, values: Values) -> None:
    """Every value comes back bit for bit, under its own name, in its planned size."""
    opened = open_model(path)
    assert opened.format == opened.quant_method == "gptq"
    assert set(opened.tensors) == set(values)
    for name, value in values.items():
        loaded, info = opened.load(name), opened.tensors[name]
        assert info.shape == tuple(value.shape)
        if isinstance(value, QuantizedTensor):
            assert isinstance(loaded, QuantizedTensor)
            assert loaded.equal(value), name
            assert info.scheme == value.scheme
            planned = PlannedTensor(name, info.shape, info.scheme, torch.float16)
            assert info.nbytes == GPTQ.nbytes(planned)
        else:
            assert isinstance(loaded, torch.Tensor)
            assert torch.equal(loaded, value)
            assert loaded.dtype == value.dtype
    assert opened.companion_reader() == COMPANIONS
    assert check_complete(opened) == ()


def example(bits: int, *, zero: bool) -> QuantizedTensor:
    """32 inputs with code k mod 2**bits, zero of output n = 1 + n mod (2**bits - 1), scale 0.5."""
    codes = (torch.arange(32) % (1 << bits)).to(torch.uint8).expand(32, 32).contiguous()
    zeros = (1 + torch.arange(32) % ((1 << bits) - 1)).to(torch.uint8)[:, None] if zero else None
    scheme = Scheme(bits, offset="zero" if zero else "none", levels=(ScaleLevel(WHOLE_ROW),))
    return QuantizedTensor(scheme, codes, (torch.full((32, 1), 0.5, dtype=torch.float16),), zeros)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (2, [0xE4E4E4E4] * 2),
        (3, [0x88FAC688, 0xC688FAC6, 0xFAC688FA]),
        (4, [0x76543210, 0xFEDCBA98] * 2),
        (8, [0x03020100 + 0x04040404 * i for i in range(8)]),
    ],
)
def test_qweight_words(bits: int, words: list[int]) -> None:
    qt = example(bits, zero=False)
    encoder = GPTQ.codec.encoder(plan_for({f"{UP}.weight": qt}))  # type: ignore[attr-defined]
    parts = encoder.encode(f"{UP}.weight", qt)
    assert (parts[f"{UP}.qweight"][:, 0].numpy().view(np.uint32) == words).all()


def test_zero_words_of_both_versions() -> None:
    qt = example(4, zero=True)
    encoder = GPTQ.codec.encoder(plan_for({f"{UP}.weight": qt}))  # type: ignore[attr-defined]
    parts = encoder.encode(f"{UP}.weight", qt)
    v2 = [0x87654321, 0x1FEDCBA9, 0x98765432, 0x21FEDCBA]
    v1 = [0x76543210, 0x0EDCBA98, 0x87654321, 0x10EDCBA9]
    stored = parts[f"{UP}.qzeros"][0].numpy().view(np.uint32)
    assert stored.tolist() == v2
    assert (stored.astype(np.int64) - 0x11111111).tolist() == v1
    assert qt.decode()[0, :4].tolist() == [-0.5, 0.0, 0.5, 1.0]
    assert qt.decode()[1, :4].tolist() == [-1.0, -0.5, 0.0, 0.5]


def test_symmetric_words_of_version_1(tmp_path: Path) -> None:
    values = quantize_linears(float_tensors(), Scheme.parse("w4a16-g32"))
    folder = write_model(tmp_path / "out", values)
    words = load_file(folder / "model.safetensors")[f"{UP}.qzeros"]
    assert (words == 0x77777777).all()


SCHEMES = [
    f"w{bits}a16-g{group}{sym}"
    for bits in (2, 3, 4, 8)
    for group in ("16", "32", "64", "row")
    for sym in ("", "-asym")
]


@pytest.mark.parametrize("text", SCHEMES)
def test_round_trip(text: str, tmp_path: Path) -> None:
    scheme = Scheme.parse(text)
    values = quantize_linears(float_tensors(), scheme)
    name = f"{UP}.bias"
    values[name] = torch.randn(CONFIG["intermediate_size"])
    values["model.layers.1.mlp.up_proj.bias"] = torch.randn(CONFIG["intermediate_size"])
    folder = write_model(tmp_path / "out", values)
    same(folder, values)
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert block == json.loads((folder / "quantize_config.json").read_text())
    plain = scheme.offset == "none" and scheme.bits in (4, 8)
    assert block["checkpoint_format"] == ("gptq" if plain else "gptq_v2")
    assert (block["bits"], block["group_size"]) == (scheme.bits, scheme.group)
    assert (block["sym"], block["desc_act"]) == (scheme.offset == "none", False)
    assert block["lm_head"] is False


@pytest.mark.parametrize("text", ["w4a16-g32", "w8a16-grow", "w3a16-g16-asym", "w2a16-g32"])
def test_second_reader_agrees(text: str, tmp_path: Path) -> None:
    scheme = Scheme.parse(text)
    values = quantize_linears(float_tensors(), {"up_proj": scheme})
    folder = write_model(tmp_path / "out", values)
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    file = load_file(folder / "model.safetensors")
    parts = {p: file[f"{UP}.{p}"].numpy() for p in ("qweight", "qzeros", "scales", "g_idx")}
    version = {"gptq": 1, "gptq_v2": 2}[block["checkpoint_format"]]
    weights = decode(**parts, bits=scheme.bits, version=version)
    value = values[f"{UP}.weight"]
    assert isinstance(value, QuantizedTensor)
    assert np.array_equal(weights, value.decode(torch.float64).numpy())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_zero_point_with_every_code(bits: int, tmp_path: Path) -> None:
    """C21: all pairs of zero point and code survive, zero point 0 included."""
    count = 1 << bits
    rows = max(32, count)
    columns = max(32, count)
    scheme = Scheme(bits, offset="zero", levels=(ScaleLevel(WHOLE_ROW),))
    codes = (torch.arange(columns) % count).to(torch.uint8).expand(rows, columns).contiguous()
    zeros = (torch.arange(rows) % count).to(torch.uint8)[:, None]
    scales = torch.ones(rows, 1, dtype=torch.float16)
    config = {**CONFIG, "hidden_size": columns, "intermediate_size": rows, "head_dim": 16}
    values: Values = dict(float_tensors(config))
    values[f"{UP}.weight"] = QuantizedTensor(scheme, codes, (scales,), zeros)
    folder = write_model(tmp_path / "out", values, config=config)
    same(folder, values)
    file = load_file(folder / "model.safetensors")
    parts = {p: file[f"{UP}.{p}"].numpy() for p in ("qweight", "qzeros", "scales", "g_idx")}
    expected = codes.double().numpy() - zeros.double().numpy()
    assert np.array_equal(decode(**parts, bits=bits, version=2), expected)


def act_order(tensor: QuantizedTensor, seed: int) -> QuantizedTensor:
    """The same codes under a random map from columns to groups, ascending inside each group."""
    columns, group = tensor.shape[1], tensor.scheme.group
    generator = torch.Generator().manual_seed(seed)
    perm = torch.randperm(columns, generator=generator).reshape(-1, group).sort(dim=1).values
    return QuantizedTensor(
        tensor.scheme,
        tensor.codes,
        tensor.scales,
        tensor.zeros,
        perm=perm.flatten().to(torch.int32),
    )


@pytest.mark.parametrize("text", ["w4a16-g16", "w3a16-g32-asym"])
def test_act_order_files(text: str, tmp_path: Path) -> None:
    scheme = Scheme.parse(text)
    values = quantize_linears(float_tensors(), {"up_proj": scheme})
    value = values[f"{UP}.weight"]
    assert isinstance(value, QuantizedTensor)
    values[f"{UP}.weight"] = permuted = act_order(value, 3)
    folder = write_model(tmp_path / "out", values)
    same(folder, values)
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert block["desc_act"] is True
    file = load_file(folder / "model.safetensors")
    parts = {p: file[f"{UP}.{p}"].numpy() for p in ("qweight", "qzeros", "scales", "g_idx")}
    assert not np.array_equal(parts["g_idx"], np.sort(parts["g_idx"]))
    version = {"gptq": 1, "gptq_v2": 2}[block["checkpoint_format"]]
    weights = decode(**parts, bits=scheme.bits, version=version)
    assert np.array_equal(weights, permuted.decode(torch.float64).numpy())


def test_order_inside_a_group_does_not_change_weights(tmp_path: Path) -> None:
    values = quantize_linears(float_tensors(), {"up_proj": Scheme.parse("w4a16-g16")})
    value = values[f"{UP}.weight"]
    assert isinstance(value, QuantizedTensor)
    perm = torch.randperm(64, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    shuffled = QuantizedTensor(value.scheme, value.codes, value.scales, perm=perm)
    values[f"{UP}.weight"] = shuffled
    loaded = open_model(write_model(tmp_path / "out", values)).load_float(f"{UP}.weight")
    assert torch.equal(loaded, shuffled.decode())


def test_mixed_schemes_and_kept_linears(tmp_path: Path) -> None:
    schemes = {
        "q_proj": Scheme.parse("w4a16-g32"),
        "k_proj": Scheme.parse("w4a16-g32"),
        "o_proj": Scheme.parse("w4a16-g32"),
        "gate_proj": Scheme.parse("w4a16-g64-asym"),
        "up_proj": Scheme.parse("w8a16-g32"),
        "down_proj": Scheme.parse("w2a16-grow"),
    }
    values = quantize_linears(float_tensors(), schemes)
    values["model.layers.1.self_attn.q_proj.weight"] = random_quantized(
        Scheme.parse("w3a16-g16-asym"), (64, 64)
    )
    folder = write_model(tmp_path / "out", values)
    same(folder, values)
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (block["bits"], block["group_size"], block["sym"]) == (4, 32, True)

    def overrides(module: str) -> object:
        """What GPTQModel makes of ``dynamic``: False for a skipped module, {} for no override."""
        for pattern, values in block["dynamic"].items():
            if re.match(pattern[2:], module):
                return False if pattern.startswith("-:") else values
        return {}

    layer = "model.layers.1."
    assert overrides(f"{layer}self_attn.v_proj") is False
    assert overrides(f"{layer}self_attn.k_proj") == {}
    assert overrides(f"{layer}mlp.up_proj") == {"bits": 8, "group_size": 32, "sym": True}
    assert overrides(f"{layer}mlp.down_proj") == {"bits": 2, "group_size": -1, "sym": True}
    assert overrides(f"{layer}self_attn.q_proj") == {"bits": 3, "group_size": 16, "sym": False}
    assert overrides("model.layers.0.self_attn.q_proj") == {}
    packed = block["modules_in_block_to_quantize"][0]
    assert f"{layer}mlp.up_proj" in packed
    assert not any("v_proj" in name or "lm_head" in name for name in packed)


@pytest.mark.parametrize(
    ("scheme", "shape", "word"),
    [
        (Scheme(5), (64, 128), "5"),
        (Scheme(4, offset="minimum"), (64, 128), "zero point"),
        (Scheme(4, levels=(ScaleLevel(128, "bf16"),)), (64, 128), "f16"),
        (Scheme(4, levels=(ScaleLevel(16), ScaleLevel(256))), (64, 256), "one level"),
        (Scheme.parse("w8a8"), (64, 128), "weight-only"),
        (Scheme(4), (64, 1100), "1100"),
        (Scheme(4), (30, 128), "30"),
        (Scheme(4), (64, 192), "192"),
        (Scheme(4), (4, 64, 128), "3"),
    ],
)
def test_refusals_name_the_number(scheme: Scheme, shape: tuple[int, ...], word: str) -> None:
    reason = GPTQ.admits(scheme, shape)
    assert reason is not None
    assert word in reason


def test_refuses_quantized_head_and_nothing_quantized(tmp_path: Path) -> None:
    values: Values = dict(float_tensors())
    with pytest.raises(UsageError, match="at least one quantized"):
        GPTQ.writer(tmp_path / "out", plan_for(values))
    values["lm_head.weight"] = random_quantized(Scheme.parse("w4a16-g32"), (96, 64))
    with pytest.raises(UsageError, match=r"lm_head\.weight"):
        GPTQ.writer(tmp_path / "out", plan_for(values))
    values = quantize_linears(float_tensors(), Scheme.parse("w4a16-g48"))
    with pytest.raises(UsageError, match=r"self_attn\.q_proj.*48.*64"):
        GPTQ.writer(tmp_path / "out", plan_for(values))
    assert not list(tmp_path.iterdir())


def test_scale_beyond_float16(tmp_path: Path) -> None:
    values = quantize_linears(float_tensors(), Scheme.parse("w4a16-g32"))
    value = values[f"{UP}.weight"]
    assert isinstance(value, QuantizedTensor)
    value.scales[0][5, 1] = float("inf")
    with (
        pytest.raises(ModelError, match=r"up_proj.*float16"),
        GPTQ.writer(tmp_path / "out", plan_for(values)) as writer,
    ):
        writer.put(f"{UP}.weight", value)
    assert not list(tmp_path.iterdir())
