"""Configurations: what is read, what is refused and where, and the models and inputs they stand for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pydantic
import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from monet.errors import ConfigError
from monet.models.config import Config, InputSpec, load_config, shipped_configs
from monet.models.model_loading import build_model
from monet.models.sample_inputs import empty_inputs, make_inputs
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights

LINEAR = "torch.nn:Linear"


@pytest.fixture(autouse=True)
def working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Config:
    Path("net.yaml").write_text(text)
    return load_config("net.yaml")


def config(model: str, **kwargs: object) -> Config:
    return Config(model=model, kwargs=kwargs, inputs=(InputSpec(shape=(2, 3)),))


def test_defaults() -> None:
    read = load("model: a.b:c\ninputs:\n  - shape: [2, 3]\n")
    assert read == Config(model="a.b:c", kwargs={}, inputs=(InputSpec(shape=(2, 3)),), training=True, seed=0)
    assert read.inputs == (InputSpec(shape=(2, 3), dtype="float32", requires_grad=False),)


def test_every_field() -> None:
    read = load(
        "model: a:B.c\nkwargs: {width: 3, sizes: [1, 2], name: x}\ntraining: false\nseed: 7\n"
        "dtype: float64\nautocast: bfloat16\n"
        "inputs:\n  ids: {shape: [4], dtype: int64, low: 1, high: 9}\n"
        "  image: {shape: [], dtype: bfloat16, requires_grad: true}\n"
    )
    assert read.kwargs == {"width": 3, "sizes": [1, 2], "name": "x"}
    assert (read.training, read.seed) == (False, 7)
    assert (read.dtype, read.autocast) == ("float64", "bfloat16")
    assert read.inputs == {
        "ids": InputSpec(shape=(4,), dtype="int64", low=1, high=9),
        "image": InputSpec(shape=(), dtype="bfloat16", requires_grad=True),
    }


def test_inputs_without_a_dtype_have_the_models() -> None:
    inputs = "inputs:\n  x: {shape: [4]}\n  y: {shape: [4], dtype: float32}\n  n: {shape: [4], dtype: int8, high: 2}\n"
    read = load("model: a:B\ndtype: bfloat16\n" + inputs)
    _, made = make_inputs(read.with_batch(2), seed=0)
    assert {k: v.dtype for k, v in made.items()} == {"x": torch.bfloat16, "y": torch.float32, "n": torch.int8}
    _, made = make_inputs(load("model: a:B\n" + inputs), seed=0)
    assert made["x"].dtype == torch.float32


def test_a_config_is_frozen_and_goes_to_other_processes() -> None:
    read = load_config("tiny.yaml")
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(read, "seed", 3)  # noqa: B010
    assert pickle.loads(pickle.dumps(read)) == read


MODEL = "model: a.b:c\n"
INPUT = "inputs:\n  - shape: [1]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MODEL + "inputs:\n  - shape: [1]\n  - shape: [1,\n      0]\n",
            "net.yaml:5: inputs[1].shape[1]: must be a positive whole number, or a name and the largest size as "
            "length<=512; got 0",
        ),
        (MODEL + "inputs:\n  - shape: 3\n", "net.yaml:3: inputs[0].shape: must be a list of positive whole numbers"),
        (
            MODEL + "inputs:\n  - shape: [1.5]\n",
            "net.yaml:3: inputs[0].shape[0]: must be a positive whole number",
        ),
        (MODEL + "inputs:\n  - [1, 3]\n", "net.yaml:3: inputs[0]: must be a mapping with a shape"),
        (MODEL + "inputs:\n  - dtype: int8\n", "net.yaml:3: inputs[0].shape: missing"),
        (
            MODEL + "inputs:\n  x:\n    shape: [1]\n    dtype: float\n",
            "net.yaml:5: inputs.x.dtype: must be one of float32",
        ),
        (
            MODEL + "inputs:\n  x:\n    shape: [1]\n    dtyp: a\n",
            "net.yaml:5: inputs.x.dtyp: unknown field (did you mean dtype?)",
        ),
        (MODEL + "inputs:\n  - {shape: [1], dtype: int64}\n", "net.yaml:3: inputs[0]: an int64 input needs `high`"),
        (MODEL + "inputs:\n  - {shape: [1], high: 4}\n", "net.yaml:3: inputs[0]: low and high are for integer inputs"),
        (MODEL + "inputs:\n  - {shape: [1], dtype: int8, high: 129}\n", "net.yaml:3: inputs[0]: values from [0, 129)"),
        (
            MODEL + "inputs:\n  - {shape: [1], dtype: int8, low: 2, high: 2}\n",
            "net.yaml:3: inputs[0]: values from [2, 2)",
        ),
        (
            MODEL + "inputs:\n  - {shape: [1], dtype: bool, requires_grad: true}\n",
            "inputs[0]: requires_grad needs a floating",
        ),
        (MODEL + "inputs: []\n", "net.yaml:2: inputs: must be a list of inputs, or a mapping"),
        (MODEL + "inputs: 3\n", "net.yaml:2: inputs: must be a list of inputs, or a mapping"),
        (MODEL + INPUT + "training: 1\n", "net.yaml:4: training: must be true or false; got 1"),
        (MODEL + INPUT + "seed: -1\n", "net.yaml:4: seed: must be a whole number, 0 or more; got -1"),
        (MODEL + INPUT + "dtype: int8\n", "net.yaml:4: dtype: must be one of float32, float64, float16, bfloat16; got"),
        (MODEL + INPUT + "autocast: true\n", "net.yaml:4: autocast: must be bfloat16 or float16; got True"),
        (MODEL + INPUT + "sed: 1\n", "net.yaml:4: sed: unknown field (did you mean seed?)"),
        (MODEL + INPUT + "kwargs: [1]\n", "net.yaml:4: kwargs: must be a mapping"),
        (MODEL + INPUT + "kwargs: {1: 2}\n", "net.yaml:4: kwargs[1]: must be a mapping"),
        (MODEL, "net.yaml:1: inputs: missing"),
        ("\n" + INPUT, "net.yaml:2: model: missing; must be package.module:callable"),
        ("model: resnet50\n" + INPUT, "net.yaml:1: model: must be package.module:callable"),
        (MODEL + INPUT + "model: d:e\n", "net.yaml:4: model: given twice, first on line 1"),
        (MODEL + "inputs:\n  - shape: [1]\n    shape: [2]\n", "net.yaml:4: shape: given twice, first on line 3"),
        ("", "net.yaml: the file is empty"),
        ("# nothing\n", "net.yaml: the file is empty"),
        ("[1, 2]", "net.yaml:1: must be a mapping of fields: model, kwargs, inputs"),
        ("a: [1, 2\nb: 3", "net.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "net.yaml:2: not valid YAML"),
        ("a: !!python/object:os.system x", "net.yaml:1: not valid YAML"),
        ("? [a]\n: 3", "net.yaml:1: not valid YAML"),
        ("a: *b", "net.yaml:1: not valid YAML"),
        ("a: \x07", "net.yaml: not valid YAML"),
        ("a:\n  b: 2024-99-99", "net.yaml:2: not valid YAML: '2024-99-99' is no timestamp"),
        ("a: !!timestamp z", "net.yaml:1: not valid YAML: 'z' is no timestamp"),
        ("a: [1,\n !!bool maybe]", "net.yaml:2: not valid YAML: 'maybe' is no bool"),
        ("a: &x [*x]", "net.yaml:1: a: unknown field"),
        ("- " * 5000 + "a", "net.yaml: nested too deeply"),
    ],
)
def test_errors_name_file_line_and_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text)
    assert message in str(refused.value)
    assert "<by" not in str(refused.value)


def test_inputs_that_no_memory_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"net.yaml:3: inputs\[0\]: .*3.0e\+20 elements are more than any memory has"):
        load("model: a:b\ninputs:\n  - shape: [100000000000, 3000000000]\n")
    small = load("model: a:b\ninputs:\n  - shape: [1, 3]\n")
    with pytest.raises(ConfigError, match=r"batch 1000.*: 3.0e\+20 elements are more than any memory has"):
        small.with_batch(10**20)


def test_all_errors_are_told_at_once_and_only_where_they_are() -> None:
    with pytest.raises(ConfigError) as refused:
        load("model: 3\ninputs:\n  - shape: [0]\nseed: x\n")
    places = [line.split(": must")[0] for line in str(refused.value).splitlines()]
    assert sorted(places) == ["net.yaml:1: model", "net.yaml:3: inputs[0].shape[0]", "net.yaml:4: seed"]


def test_unreadable_files() -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    os.mkdir("folder.yaml")
    for path, message in (
        ("binary.yaml", "UTF-8"),
        ("folder.yaml", "directory"),
        ("no/net.yaml", "No such file"),
        ("resnet5O.yaml", r"did you mean resnet50\.yaml.*mobilenet_v2\.yaml"),
    ):
        with pytest.raises(ConfigError, match=rf"{path}: .*{message}"):
            load_config(path)


def test_a_file_in_the_working_directory_comes_before_a_shipped_one() -> None:
    assert load_config("tiny.yaml").model == "monet.models.examples:tiny_resnet"
    Path("tiny.yaml").write_text(MODEL + INPUT)
    assert load_config(Path("tiny.yaml")).model == "a.b:c"


def test_shipped_configs_are_at_monets_sizes() -> None:
    shapes = {}
    for name in ("googlenet.yaml", "mobilenet_v2.yaml", "resnet50.yaml", "tiny.yaml", "unet.yaml", "vgg16.yaml"):
        inputs = load_config(name).inputs
        assert isinstance(inputs, tuple)
        shapes[name] = inputs[0].shape
    assert shapes == {
        "googlenet.yaml": (320, 3, 224, 224),
        "mobilenet_v2.yaml": (256, 3, 224, 224),
        "resnet50.yaml": (184, 3, 224, 224),
        "tiny.yaml": (8, 3, 32, 32),
        "unet.yaml": (11, 3, 608, 416),
        "vgg16.yaml": (176, 3, 224, 224),
    }


@pytest.mark.parametrize("name", shipped_configs())
@pytest.mark.sampled(4)
def test_shipped_models_run(name: str) -> None:
    """On fake tensors: the largest takes neither memory nor time."""
    shipped = load_config(name)
    package = shipped.model.partition(".")[0].partition(":")[0]
    if package == "monet" and "transformers" in shipped.model:
        package = "transformers"
    if find_spec(package) is None:
        pytest.skip("needs the models extra")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    real = name in ("swin.yaml", "vit.yaml")  # read numbers of tensors while they are made
    with nullcontext() if real else mode:
        model = build_model(shipped)
    with mode:
        args, kwargs = empty_inputs(shipped, model)
        outputs = pytree.tree_leaves(model(*args, **kwargs))
    batch = [*args, *kwargs.values()][0].shape[0]
    assert any(isinstance(t, torch.Tensor) and t.shape[:1] == (batch,) for t in outputs)


def test_inputs_are_random_by_seed_only() -> None:
    read = load(
        "model: a:b\ninputs:\n  - {shape: [100], requires_grad: true}\n"
        "  - {shape: [100], dtype: int32, low: -2, high: 3}\n"
        "  - {shape: [100], dtype: bool}\n  - {shape: [4], dtype: bfloat16}\n"
    )
    state = torch.get_rng_state()
    (floats, integers, booleans, halves), kwargs = make_inputs(read, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert kwargs == {}
    assert floats.requires_grad and not halves.requires_grad
    assert [x.dtype for x in (floats, integers, booleans, halves)] == [
        torch.float32,
        torch.int32,
        torch.bool,
        torch.bfloat16,
    ]
    assert set(integers.tolist()) == {-2, -1, 0, 1, 2}
    assert set(booleans.tolist()) == {False, True}
    again, other = make_inputs(read, seed=1)[0], make_inputs(read, seed=2)[0]
    assert all(map(torch.equal, again, (floats, integers, booleans, halves)))
    assert not torch.equal(other[0], floats)


def test_keyword_inputs() -> None:
    read = load("model: a:b\ninputs:\n  input: {shape: [2, 3], requires_grad: true}\n")
    args, kwargs = empty_inputs(read, nn.Linear(3, 1))
    assert args == ()
    assert kwargs["input"].shape == (2, 3)
    assert kwargs["input"].requires_grad and kwargs["input"].is_leaf
    assert list(make_inputs(read, 0)[1]) == ["input"]


def test_a_model_is_built_from_its_seed_in_its_mode() -> None:
    training = config(LINEAR, in_features=3, out_features=4)
    evaluation = training.model_copy(update={"training": False})
    state = torch.get_rng_state()
    model = build_model(training)
    assert torch.equal(state, torch.get_rng_state())
    assert isinstance(model, nn.Linear)
    assert model.training and not build_model(evaluation).training
    torch.manual_seed(0)
    assert torch.equal(model.weight, nn.Linear(3, 4).weight)
    other = build_model(training.model_copy(update={"seed": 1}))
    assert not torch.equal(model.weight, other.get_parameter("weight"))


def test_a_users_own_script_is_importable_for_the_load_only() -> None:
    Path("my_train_script.py").write_text(
        "import torch\ndef make_model(width=2):\n    import my_lazy_part\n"
        "    return torch.nn.Linear(width, my_lazy_part.SIZE)\n"
    )
    Path("my_lazy_part.py").write_text("SIZE = 5\n")
    paths = list(sys.path)
    model = build_model(config("my_train_script:make_model", width=3))
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (3, 5)
    assert sys.path == paths


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.at.all:make", r"nowhere.at.all:make: No module named 'nowhere'.*install nowhere"),
        ("torch.nn.nowhere:make", r"No module named 'torch.nn.nowhere'"),
        ("torch.nn:Linaer", r"torch.nn has no Linaer; did you mean Linear\?"),
        ("torch.nn:Linear.what", "torch.nn has no Linear.what"),
        ("torch:float32", "float32 is an object of type dtype, not a class or a function"),
        (LINEAR, r"calling it with \(width=3\) failed: TypeError: .*width.*check kwargs"),
        ("bad_script:negative", r"failed: ValueError: width must be .* \(it raises that itself\)"),
        ("bad_script:rank", r"returned an object of type int, not a torch\.nn\.Module"),
        ("needy_script:make", r"No module named 'nowhere'; needy_script needs it: install nowhere"),
        ("broken_script:make", "importing broken_script failed: SyntaxError"),
        ("quitting_script:make", "importing quitting_script failed: SystemExit: 2"),
        ("bad_script:quit", "calling it with .* failed: SystemExit"),
    ],
)
def test_a_model_that_cannot_be_built(reference: str, message: str) -> None:
    Path("bad_script.py").write_text(
        "import sys\ndef rank(width): return 3\ndef quit(width): sys.exit('no GPU')\n"
        "def negative(width): raise ValueError('width must be below 0')\n"
    )
    Path("needy_script.py").write_text("import nowhere\n")
    Path("broken_script.py").write_text("def (\n")
    Path("quitting_script.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(ConfigError, match=message) as refused:
        build_model(config(reference, width=3))
    assert reference in str(refused.value)


def test_missing_model_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai", None)
    with pytest.raises(ConfigError, match=r"pip install monai torch==2\."):
        build_model(config("monai:UNet"))


def run_with_fake_torchvision(init: str) -> subprocess.CompletedProcess[str]:
    """Load a model from a script that imports torchvision on its first call, in a process of its own."""
    os.mkdir("torchvision")
    Path("torchvision/__init__.py").write_text(init)
    Path("torchvision/part.py").write_text("print('part imported')\n")
    Path("script.py").write_text(
        "import torch\ndef make():\n    import torchvision\n    return torch.nn.Linear(1, 1)\n"
    )
    Path("load.py").write_text(
        "import logging; logging.basicConfig(level='INFO', format='%(name)s %(message)s')\n"
        "from monet.models.config import Config\nfrom monet.models.model_loading import build_model\n"
        "print(build_model(Config(model='script:make', inputs=[{'shape': [1]}])))\n"
    )
    return subprocess.run([sys.executable, "load.py"], capture_output=True, text=True)


def test_torchvision_beside_another_build_of_torch_is_repaired() -> None:
    done = run_with_fake_torchvision(
        "import torch\nfrom torchvision import part\n"
        "for name in ('nms', 'qnms'):\n"
        "    try: getattr(torch.ops.torchvision, name)\n"
        "    except AttributeError: raise RuntimeError(f'operator torchvision::{name} does not exist') from None\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["part imported"] * 2 + ["Linear(in_features=1, out_features=1, bias=True)"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("monet.models.torchvision_schemas torchvision's compiled operators do not load")


@pytest.mark.parametrize(
    "symptom", ["operator torchvision::roi_align does not exist", "operator torchvision::nms does not exist"]
)
def test_other_failures_of_torchvision_and_a_failed_repair_are_told(symptom: str) -> None:
    done = run_with_fake_torchvision(f"raise RuntimeError({symptom!r})")
    assert done.returncode == 1
    assert f"RuntimeError: {symptom} (it raises" in done.stderr
    assert ("defined the names" in done.stderr) == ("::nms" in symptom)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"architecture": "GPT2LMHeadMode"}, "did you mean GPT2LMHeadModel"),
        ({"architecture": "GPT2LMHeadModel", "n_layers": 2}, "GPT2Config has no field n_layers; did you mean n_layer"),
    ],
)
def test_wrong_fields_of_a_transformers_model_are_told(kwargs: dict[str, Any], said: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=said):
        with_torchvision_schemas(lambda: random_weights(**kwargs))
