"""Every registered architecture: sizes as published, and the properties that training relies on."""

from functools import lru_cache

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.registry import to_table
from unskew.models.base import Architecture, Model, architectures, build
from unskew.models.etf import head_inputs
from unskew.models.sizes import build_shapes, count_parameters, describe_model

RGB32, GREY28, RGB28, RGB64, GREY8 = (3, 32, 32), (1, 28, 28), (3, 28, 28), (3, 64, 64), (1, 8, 8)

PUBLISHED = [
    ("fedavg_cnn", RGB32, 10, 2_156_490),
    ("fedavg_cnn", GREY28, 10, 1_664_970),
    ("fedavg_cnn", RGB28, 9, 1_664_457),
    ("fedavg_cnn", RGB28, 8, 1_663_944),
    ("fedavg_cnn(padding=0)", RGB32, 10, 878_538),
    ("fedas_cnn", RGB32, 10, 878_538),
    ("fedas_cnn", RGB32, 100, 924_708),
    ("convnet3", RGB32, 10, 320_010),
    ("convnet3", RGB32, 100, 504_420),
    ("convnet3", GREY28, 10, 317_706),
    ("convnet3", RGB64, 10, 381_450),
    ("mobilenetv2_flfa", RGB32, 10, 2_254_090),
    ("mobilenetv2_flfa", RGB28, 8, 2_251_528),
    ("mobilenetv2_flfa", RGB28, 9, 2_252_809),
    ("mobilenetv2_flfa", GREY28, 11, 2_255_371),
    ("mobilenetv2_flfa", RGB32, 100, 2_369_380),
    ("mobilenetv2", RGB32, 10, 2_296_922),
    ("mobilenetv2", RGB32, 100, 2_412_212),
    ("mobilenetv2", RGB64, 200, 2_540_312),
    ("resnet18", RGB32, 10, 11_173_962),
    ("resnet18(norm=batch_stats)", RGB32, 10, 11_173_962),
    ("resnet18", RGB32, 100, 11_220_132),
    ("resnet18_imagenet", RGB32, 10, 11_181_642),
    ("resnet50", RGB32, 10, 23_520_842),
    ("resnet50", RGB32, 100, 23_705_252),
    ("vgg11", RGB32, 10, 9_750_922),
    ("sl_vit", RGB32, 10, 6_176_275),
    ("mlp", GREY8, 10, 64 * 64 + 64 + 64 * 10 + 10),
    ("mlp(hidden=[])", (20,), 3, 63),
    ("cnn8", GREY8, 10, 160 + 4640 + 512 * 64 + 64 + 650),
]

FEATURES = {
    "fedavg_cnn": 512,
    "fedas_cnn": 512,
    "convnet3": 2048,
    "mobilenetv2_flfa": 1280,
    "mobilenetv2": 1280,
    "resnet18": 512,
    "resnet18(norm=batch_stats)": 512,
    "resnet18_imagenet": 512,
    "resnet50": 2048,
    "vgg11": 512,
    "sl_vit": 192,
    "mlp": 64,
    "cnn8": 64,
    "cnn8(norm=batch)": 64,
}
IMAGES = sorted(set(FEATURES) - {"mlp"})


@lru_cache(maxsize=4)
def made(spec, shape, num_classes=10, seed=0) -> Model:
    torch.manual_seed(seed)
    return build(spec, shape, num_classes)


def inputs(shape, count=2):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def test_every_architecture_is_tested_here():
    ours = {name for name in architectures if architectures.get(name).__module__.startswith("unskew.")}
    assert {architectures.build(spec).name for spec in FEATURES} == ours - {"python", "given"}


@pytest.mark.parametrize(("spec", "shape", "num_classes", "expected"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(spec, shape, num_classes, expected):
    with torch.device("meta"):
        assert count_parameters(build(spec, shape, num_classes)) == expected


@pytest.mark.parametrize("shape", [GREY28, RGB32, RGB64, (3, 30, 45)])
@pytest.mark.parametrize("spec", FEATURES)
def test_logits_and_flat_features(spec, shape):
    with torch.device("meta"):
        output = build(spec, shape, 7)(torch.empty(2, *shape))
    assert isinstance(output, Output)
    assert output.logits.shape == (2, 7)
    assert output.features.ndim == 2
    if shape in (GREY28, RGB32):
        assert output.features.shape[1] == FEATURES[spec]


@pytest.mark.parametrize("spec", FEATURES)
def test_names_gradients_and_the_split(spec):
    model = made(spec, RGB32)
    assert all(name.startswith(("body.", "head.")) for name in model.state_dict())
    assert any(name.startswith("head.") for name in model.state_dict())
    logits, features = model(inputs(RGB32))
    torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2])).backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    model.zero_grad()
    assert without == []
    torch.testing.assert_close(model.head(features), logits)


@pytest.mark.parametrize("shape", [GREY28, RGB32])
@pytest.mark.parametrize("spec", FEATURES)
def test_many_models_run_at_once(spec, shape):
    models = [made(spec, shape, seed=seed).eval() for seed in (0, 1)]
    state = {key: value.detach() for part in stack_module_state(models) for key, value in part.items()}
    x = inputs(shape, 4).unflatten(0, (2, 2))
    with torch.no_grad():
        together = vmap(lambda weights, batch: functional_call(models[0], weights, (batch,)).logits)(state, x)
        apart = torch.stack([model(batch).logits for model, batch in zip(models, x, strict=True)])
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", FEATURES)
def test_a_seed_gives_the_same_model(spec):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(spec, GREY28, 3).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(("spec", "smallest"), [("fedas_cnn", 16), ("fedavg_cnn", 4), ("fedavg_cnn(padding=1)", 10),
                                                ("convnet3", 8), ("resnet18", 8), ("vgg11", 16), ("sl_vit", 16),
                                                ("mobilenetv2", 8), ("mobilenetv2_flfa", 8),
                                                ("resnet18_imagenet", 16), ("cnn8", 2)])  # fmt: skip
def test_images_below_the_smallest_size_are_refused(spec, smallest):
    with torch.device("meta"):
        assert build(spec, (1, smallest, smallest), 3)(torch.empty(2, 1, smallest, smallest)).logits.shape == (2, 3)
    with pytest.raises(InputError, match=rf"at least {smallest}x{smallest}, got {smallest - 1}x40; use (cnn8 or )?mlp"):
        build(spec, (1, smallest - 1, 40), 3)


@pytest.mark.parametrize("spec", IMAGES)
def test_flat_features_need_an_mlp(spec):
    with pytest.raises(InputError, match=r"needs images \(channels, height, width\), got .*\(20,\); use mlp"):
        build(spec, (20,), 3)


def test_grey_images_are_replicated_or_taken_as_they_are():
    assert made("fedavg_cnn", GREY28).body[1].in_channels == 3
    assert made("fedavg_cnn(replicate_grey=false)", GREY28).body[1].in_channels == 1
    grey = made("fedavg_cnn", GREY28)
    rgb = build("fedavg_cnn", RGB28, 10)
    rgb.load_state_dict(grey.state_dict())
    x = inputs(GREY28)
    torch.testing.assert_close(rgb(x.repeat(1, 3, 1, 1)).logits, grey(x).logits)


def layers(spec, *kinds):
    return [module for module in made(spec, RGB32).modules() if isinstance(module, kinds)]


def test_layers_that_methods_choose_from():
    assert len(layers("mobilenetv2_flfa", torch.nn.Conv2d)) == 54
    assert len(layers("mobilenetv2", torch.nn.Conv2d, torch.nn.Linear)) == 58
    assert isinstance(made("mobilenetv2_flfa", RGB32).head.conv, torch.nn.Conv2d)


@pytest.mark.parametrize(("pixels", "expected"), [(32, [34, 34, 17, 9, 5, 5, 5, 5]), (28, [30, 30, 15, 8, 4, 4, 4, 4])])
def test_map_sizes_of_mobilenetv2_flfa(pixels, expected):
    body, x, sides = made("mobilenetv2_flfa", (3, pixels, pixels)).body, torch.zeros(2, 3, pixels, pixels), []
    for layer in list(body)[:8]:
        x = layer(x)
        sides.append(x.shape[-1])
    assert sides == expected


def test_batch_statistics_leave_no_buffers_and_are_used_in_evaluation():
    model = build("resnet18(norm=batch_stats)", GREY28, 10)
    assert list(model.buffers()) == []
    x = inputs(GREY28)
    torch.testing.assert_close(model.eval()(x).logits, model.train()(x).logits)
    assert len(list(build("resnet18", GREY28, 10).buffers())) == 60


def test_a_shifted_patch_holds_the_image_and_four_neighbours():
    from unskew.models.vit import ShiftedPatches

    image = torch.arange(16.0).reshape(1, 1, 4, 4) + 1
    tokens = ShiftedPatches(1)(image)
    assert tokens.shape == (1, 16, 5)
    # pixel (1, 1) is 6: itself, then its left, right, upper and lower neighbours
    assert tokens[0, 5].tolist() == [6, 5, 7, 2, 10]
    assert tokens[0, 0].tolist() == [1, 0, 2, 0, 5]


def test_attention_never_looks_at_the_token_itself():
    from unskew.models.vit import LocalAttention

    torch.manual_seed(0)
    attention, x = LocalAttention(), torch.rand(1, 2, 192)
    values = attention.qkv(x).chunk(3, dim=-1)[2]
    torch.testing.assert_close(attention(x), attention.out(values.flip(1)))  # of two tokens, each sees the other


def test_describe_counts_by_hand():
    summary = describe_model(made("cnn8(norm=batch)", GREY8), GREY8)
    assert summary.macs == 64 * 16 * 9 + 64 * 32 * 16 * 9 + 512 * 64 + 640
    assert summary.features == 64
    assert summary.buffers == 2 * (16 + 32) + 2
    assert summary.parameters == count_parameters(made("cnn8(norm=batch)", GREY8))


def test_describe_leaves_the_model_alone():
    model = build("cnn8(norm=batch)", GREY8, 10)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    describe_model(model, GREY8)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("spec", FEATURES)
def test_shapes_say_what_the_model_would(spec):
    model = build_shapes(architectures.build(spec), RGB32, 10)
    assert all(value.is_meta for value in model.state_dict().values())
    assert count_parameters(model) == count_parameters(made(spec, RGB32))
    assert head_inputs(model.head) == describe_model(made(spec, RGB32), RGB32).features


def test_a_spec_is_text_a_table_or_an_architecture():
    text = architectures.build("convnet3(width=16, norm=instance)")
    assert isinstance(text, Architecture)
    assert architectures.build(to_table(text)) == text == architectures.build(str(text))
    for spec in (text, to_table(text), str(text)):
        assert build(spec, RGB32, 10).body[0].out_channels == 16


def test_bad_options_are_input_errors():
    with pytest.raises(InputError, match=r"mobilenetv2"):
        build("mobilenet2", RGB32, 10)
    with pytest.raises(InputError, match=r"resnet18.norm"):
        build("resnet18(norm=layer)", RGB32, 10)
    with pytest.raises(InputError, match=r"mlp.hidden.*greater than 0"):
        build("mlp(hidden=[0])", GREY8, 10)


@pytest.mark.parametrize("spec", ["fedavg_cnn", "fedas_cnn", "vgg11", "sl_vit", "cnn8", "resnet18(norm=batch_stats)"])
def test_gradients_of_many_models_at_once(spec):
    # in double precision: where two samples are standardised, single precision is a matter of the processor
    models = [made(spec, GREY28, seed=seed).double().train() for seed in (0, 1)]
    weights, _ = stack_module_state(models)
    x, y = inputs(GREY28, 4).double().unflatten(0, (2, 2)), torch.tensor([[1, 2], [3, 4]])

    def loss(weights, x, y):
        return torch.nn.functional.cross_entropy(functional_call(models[0], weights, (x,)).logits, y)

    together = vmap(grad(loss))(weights, x, y)
    alone = grad(loss)({key: value[1] for key, value in weights.items()}, x[1], y[1])
    for key, value in alone.items():
        torch.testing.assert_close(together[key][1], value, rtol=1e-6, atol=1e-9)
