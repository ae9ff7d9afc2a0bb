"""Networks of other packages: what they are named by, what is refused, and what their keys follow."""

import itertools

import pytest
import torch

import models
from reread.planning import keys
from reread.planning.validation import read
from reread.storage import outside
from reread.storage.errors import InputError
from reread.storage.numeric import numeric_digest, numeric_source
from reread.training.settings import Settings as Training

NUMBERS = itertools.count()
NETS = """
from torch import nn

from .layers import pool
from .star import *
from {other} import offset

KIND = "image"


class Net(nn.Module):
    DEBUG = {{"width": 2}}

    def __init__(self, description, width: int = 4, rate: float = 0.5):
        super().__init__()
        self.last = nn.Linear(width, len(description["classes"]))

    def forward(self, images):
        return self.last(pool(images)) + shift(images) + offset


def nothing(description, width: int = 4):
    return width


def required(description, width):
    return None


def no_description(width: int = 4):
    return None


def no_value(description, kind=nn.ReLU):
    return None
"""
FILES = {
    "__init__.py": "",
    "layers.py": '"""Pool."""\nRATE = 2\n\n\ndef pool(x):\n    return RATE * x\n',
    "star.py": "def shift(x):\n    return 1\n",
    "unused.py": "X = 1\n",
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a package that is importable, with changes of its files, and returns its name."""

    def write(changes=(), other="offset = 3\n", version=None, neighbour=None) -> str:
        number = next(NUMBERS)
        name, neighbour, site = f"nets_{number}", neighbour or f"neighbour_{number}", tmp_path / str(number)
        (site / name).mkdir(parents=True)
        (site / f"{neighbour}.py").write_text(other)
        for file, text in {**FILES, "nets.py": NETS.format(other=neighbour), **dict(changes)}.items():
            (site / name / file).write_text(text)
        if version:
            about = site / f"{name}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (about / "top_level.txt").write_text(f"{name}\n")
            (about / "entry_points.txt").write_text(f"[reread.models]\nnet-{number} = {name}.nets:Net\n")
        monkeypatch.syspath_prepend(str(site))
        outside.entry_points.cache_clear()
        return name

    yield write
    outside.entry_points.cache_clear()


def test_a_class_is_a_network_and_its_parameters_are_settings(write):
    model = f"{write()}.nets:Net"
    assert models.kind(model) == "image" and models.debug(model).width == 2
    settings = read(models.settings_class(model), {"width": 3}, "network")
    network = models.build(model, {"width": 3, "rate": 0.5}, {"kind": "image", "name": "x", "classes": ["a", "b"]})
    assert (settings.width, settings.rate) == (3, 0.5) and network(torch.zeros(1, 3)).shape == (1, 2)
    with pytest.raises(InputError, match=r"'widht' in network: did you mean 'width'"):
        read(models.settings_class(model), {"widht": 3}, "network")
    with pytest.raises(InputError, match=r"network\.width"):
        read(models.settings_class(model), {"width": "wide"}, "network")


def test_a_module_is_a_network_as_a_file_of_models_is(write):
    text = (models.REGISTRY.folder / "word_average.py").read_text()
    name = write({"average.py": text})
    assert models.kind(f"{name}.average") == "text"
    description = {"kind": "text", "name": "x", "classes": ["a", "b"], "vocabulary_size": 9}
    assert models.build(f"{name}.average", {"embedding_dim": 4}, description).classifier.in_features == 4
    with pytest.raises(InputError, match=r"nets has no 'Settings'"):
        models.kind(f"{name}.nets")


def test_an_entry_point_is_the_address_that_it_names(write):
    name = write(version="1.5")
    entry = f"net-{name.rpartition('_')[2]}"
    assert models.address(entry) == f"{name}.nets:Net" and models.kind(entry) == "image"
    with pytest.raises(InputError, match=f"did you mean '{entry}'"):
        models.kind(f"{entry}s")


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("{}.nets:Nte", "did you mean 'Net'"),
        ("{}.net:Net", r"did you mean 'nets_\d+.nets'"),
        ("absent_{}.nets", "not importable here"),
        ("{}.nets:pool", "no parameter 'description'"),
        ("{}.nets:no_description", "no parameter 'description'"),
        ("{}.nets:required", "'width' needs a name and a default"),
        ("{}.nets:no_value", "no value that YAML has"),
        ("{}.nets:KIND", "no torch.nn.Module"),
        ("{}.broken:Net", "NameError: name 'nn' is not defined"),
        ("{}.wrong:Net", r"invalid syntax"),
        ("{}.lacking:Net", "imports 'surely_absent', which is not installed here"),
        ("{}.nets:a b", "no address of a module"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(write, address, answer):
    broken = {"broken.py": "Net = nn.Linear\n", "wrong.py": "def:\n", "lacking.py": "import surely_absent.x\n"}
    with pytest.raises(InputError, match=answer) as refused:
        models.kind(address.format(write(broken)))
    assert "\n" not in str(refused.value)


def test_what_makes_no_module_is_refused_when_it_is_built(write):
    with pytest.raises(InputError, match=r"makes a int, and no torch\.nn\.Module"):
        models.build(f"{write()}.nets:nothing", {}, {"kind": "image", "name": "x", "classes": []})


def test_the_key_has_the_version_and_every_setting(write):
    """Nothing here holds the defaults of another package, so that they count as other values do."""
    model = f"{write(version='1.5')}.nets:Net"
    settings = read(models.settings_class(model), {"width": 3}, "network")
    source = keys.source(model, "image", settings, Training())
    parts = keys.key_parts(model, settings, Training(), 0, "data", {}, source)
    assert parts["network"] == {"width": 3, "rate": 0.5} and parts["version"] == "1.5"
    assert {f"{model.split('.')[0]}/{file}" for file in ("nets.py", "layers.py", "star.py")} <= set(source["files"])


# Of a network of another package, and of a file of models/ that imports one.
CHANGES = {
    "a constant behind a relative import": ({"layers.py": FILES["layers.py"].replace("2", "3")}, {}),
    "a constant behind an import of all names": ({"star.py": FILES["star.py"].replace("1", "2")}, {}),
    "its own code": ({"nets.py": NETS.replace("self.last(pool", "self.last(2 * pool").format(other="neighbour")}, {}),
    "at the import of its package": ({"__init__.py": "import torch\ntorch.set_num_threads(1)\n"}, {}),
    "another package": ({}, {"other": "offset = 4\n"}),
}
NO_CHANGES = {
    "a docstring": ({"layers.py": FILES["layers.py"].replace("Pool.", "Pool it.")}, {}),
    "a file that nothing imports": ({"unused.py": "X = 2\n"}, {}),
}


@pytest.fixture
def digest(write):
    def digest(changes=(), **about):
        return numeric_digest([f"{write(changes, neighbour='neighbour', **about)}.nets"])

    return digest


@pytest.mark.parametrize("change", CHANGES)
def test_code_of_another_package_that_decides_a_number_is_in_the_key(digest, change):
    changes, about = CHANGES[change]
    assert digest(changes, **about) != digest()


@pytest.mark.parametrize("change", NO_CHANGES)
def test_code_of_another_package_that_decides_none_is_not(digest, change):
    changes, about = NO_CHANGES[change]
    assert digest(changes, **about) == digest()


def test_a_file_of_models_follows_the_package_that_it_wraps(write, tmp_path):
    """By a relative import as well, and by one of all names."""
    (tmp_path / "models/layers").mkdir(parents=True)
    (tmp_path / "models/__init__.py").touch()
    (tmp_path / "models/layers/__init__.py").touch()
    (tmp_path / "models/net.py").write_text("from .layers.wrapped import wrap\n\n\ndef build():\n    return wrap()\n")
    digests = []
    for line in ("from neighbour import offset", "from neighbour import *", "import neighbour as n; offset = n.offset"):
        text = f"{line}\n\n\ndef wrap():\n    return offset\n"
        (tmp_path / "models/layers/wrapped.py").write_text(text)
        for other in ("offset = 3\n", "offset = 4\n"):
            write(other=other, neighbour="neighbour")
            digests.append(numeric_digest(["models.net"], tmp_path))
        (tmp_path / "models/layers/wrapped.py").write_text(text.replace("return ", "return 2 * "))
        digests.append(numeric_digest(["models.net"], tmp_path))
    assert len(set(digests)) == len(digests)


def test_code_that_changed_since_it_was_imported_is_refused(write, tmp_path):
    name = write()
    models.kind(f"{name}.nets:Net")
    before = numeric_source([f"{name}.nets"]).digest
    (path,) = tmp_path.glob(f"*/{name}/layers.py")
    path.write_text(FILES["layers.py"].replace("Pool", "Pool it"))
    assert numeric_source([f"{name}.nets"]).digest == before
    path.write_text(FILES["layers.py"].replace("2", "3"))
    with pytest.raises(InputError, match=r"layers\.py changed while this process ran"):
        numeric_source([f"{name}.nets"])
