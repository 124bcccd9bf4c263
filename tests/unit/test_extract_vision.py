"""Labels: weights without PyTorch, the model in its cache, names and broader names, real pictures."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frazil.extract import Limits, TooMuch, Unsupported
from frazil.extract.engine import context
from frazil.extract.engine.context import ExtractorContext
from frazil.extract.vision import labels, model, network
from frazil.extract.vision.checkpoint import BadCheckpointError, read_weights
from frazil.extract.vision.classes import broader_names, class_names, parse_groups
from frazil.extract.vision.labels import LABELS
from tests.extract_kit import MemoryItem


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _surroundings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_used", [ExtractorContext(cache)])


def photo(name: str) -> bytes:
    return (Path(__file__).parents[1] / "data" / "pictures" / name).read_bytes()


def labelled(data: bytes, kind: str = "image/jpeg", **more: object) -> dict[str, dict[str, object]]:
    told = LABELS.look(MemoryItem(data, detected_type=kind, **more))
    return {label["Name"]: label for label in told}


# -- pictures --------------------------------------------------------------------------------------------------------


def test_a_photo_of_a_cat_is_labelled_a_cat():
    told = LABELS.look(MemoryItem(photo("chelsea.jpg"), detected_type="image/jpeg"))
    found = {label["Name"]: label for label in told}
    assert found["cat"]["Broader"] is True
    assert found["cat"]["Confidence"] > 80
    assert {"tabby cat", "tiger cat", "Egyptian cat"} & set(found)
    assert "dog" not in found
    assert [t["Confidence"] for t in told] == sorted((t["Confidence"] for t in told), reverse=True)


@pytest.mark.parametrize(
    ("name", "exact", "above"),
    [
        ("coffee.jpg", "espresso", "drink"),
        ("rocket.jpg", "missile", None),
    ],
)
def test_the_names_are_in_the_order_of_the_model(name: str, exact: str, above: str | None):
    found = labelled(photo(name))
    assert exact in found
    assert above is None or above in found


def test_a_large_jpeg_on_its_side_is_the_same_cat():
    turned = (
        Image.open(io.BytesIO(photo("chelsea.jpg")))
        .convert("RGB")
        .resize((2400, 1600))
        .transpose(Image.Transpose.ROTATE_90)
    )
    held = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° to the right when it is shown
    turned.save(held, "JPEG", quality=90, exif=exif)
    assert labelled(held.getvalue(), "image/jpeg")["cat"]["Confidence"] > 80


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_any_kind_of_pixels_is_looked_at(mode: str):
    held = io.BytesIO()
    Image.open(io.BytesIO(photo("chelsea.jpg"))).convert("RGB").convert(mode).save(held, "TIFF")
    assert labels.select_labels(_probabilities(held.getvalue())) == LABELS.look(
        MemoryItem(held.getvalue(), detected_type="image/tiff")
    )


def _probabilities(data: bytes) -> np.ndarray:
    from frazil.extract.images.decode import picture_of

    picture = picture_of(MemoryItem(data, detected_type="image/tiff"), network.SIDE)
    return model.load_session().run(None, {network.INPUT: labels.pixels(picture)})[0][0]


def test_a_picture_of_one_pixel_is_looked_at():
    held = io.BytesIO()
    Image.new("RGB", (1, 1)).save(held, "PNG")
    labelled(held.getvalue(), "image/png")


def test_a_picture_beyond_the_pixel_limit_is_not_decoded():
    held = io.BytesIO()
    Image.new("1", (4000, 4000)).save(held, "PNG")
    with pytest.raises(TooMuch):
        labelled(held.getvalue(), "image/png", limits=Limits(max_pixels=1_000_000))


def test_without_the_extra_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "find_spec", lambda name: None if name == "onnxruntime" else object())
    assert labels.available() == "onnxruntime not installed; pip install 'frazil[labels]'"
    with pytest.raises(Unsupported, match=r"pip install 'frazil\[labels\]'"):
        labelled(photo("chelsea.jpg"))


def test_the_module_is_imported_without_the_heavy_packages():
    heavy = {"onnxruntime", "onnx", "PIL", "numpy", "boto3", "rapidocr"}
    code = (
        "import sys, frazil.extract.vision.labels, frazil.extract.vision.ocr\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# -- what is told ----------------------------------------------------------------------------------------------------


def probabilities(**percent: float) -> np.ndarray:
    made = np.zeros(1000, np.float32)
    for name, value in percent.items():
        made[class_names().index(name.replace("_", " "))] = value / 100
    return made


def test_only_what_is_sure_enough_is_told():
    assert labels.select_labels(probabilities(tripod=10.5, banana=9.4, envelope=60)) == [
        {"Name": "envelope", "Confidence": 60.0},
        {"Name": "tripod", "Confidence": 10.5},
    ]


def test_unsure_kinds_of_a_thing_add_up_to_a_sure_thing():
    told = labels.select_labels(probabilities(convertible=9, jeep=9, minivan=9, taxi=9))
    assert told == [
        {"Name": "car", "Confidence": 36.0, "Broader": True},
        {"Name": "vehicle", "Confidence": 36.0, "Broader": True},
    ]


def test_a_class_with_the_name_of_its_group_is_told_once():
    told = labels.select_labels(probabilities(duck=60, merganser=30))
    assert told == [
        {"Name": "duck", "Confidence": 90.0, "Broader": True},
        {"Name": "bird", "Confidence": 90.0, "Broader": True},
        {"Name": "animal", "Confidence": 90.0, "Broader": True},
        {"Name": "merganser", "Confidence": 30.0},
    ]


def test_at_most_ten_labels_are_told():
    sure = dict.fromkeys(("tabby_cat", "pug", "beagle", "jeep", "taxi", "canoe", "banana", "pizza", "tripod"), 35.0)
    assert len(labels.select_labels(probabilities(**sure))) == labels.MOST


def test_there_are_a_thousand_different_names():
    assert len(class_names()) == len(set(class_names())) == 1000
    assert [class_names()[n] for n in (0, 281, 285, 404, 817, 954, 999)] == [
        "tench",
        "tabby cat",
        "Egyptian cat",
        "airliner",
        "sports car",
        "banana",
        "toilet paper",
    ]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("tabby cat", "cat"),
        ("pug", "dog"),
        ("goldfish", "fish"),
        ("macaw", "bird"),
        ("bee", "insect"),
        ("cobra", "snake"),
        ("sports car", "car"),
        ("speedboat", "vehicle"),
        ("rocking chair", "furniture"),
        ("grand piano", "musical instrument"),
        ("daisy", "plant"),
        ("banana", "food"),
        ("volcano", "landscape"),
    ],
)
def test_who_searches_for_the_broader_name_finds_the_narrow_one(name: str, group: str):
    assert class_names().index(name) in broader_names()[group]


def test_broader_names_do_not_swallow_their_neighbours():
    in_group = {group: {class_names()[n] for n in numbers} for group, numbers in broader_names().items()}
    assert in_group["cat"] == {"tabby cat", "tiger cat", "Persian cat", "Siamese cat", "Egyptian cat"}
    assert len(in_group["dog"]) == 118
    assert not in_group["animal"] & (in_group["vehicle"] | in_group["food"] | in_group["furniture"])
    assert not in_group["dog"] & in_group["wolf"]
    assert all(in_group["animal"] > in_group[g] for g in ("dog", "cat", "bird", "fish", "reptile", "insect"))


def test_a_broader_name_over_an_unknown_class_is_refused():
    with pytest.raises(KeyError, match="unicorn"):
        parse_groups(["beast: unicorn"], class_names())


# -- weights ---------------------------------------------------------------------------------------------------------


def test_the_graph_is_the_network_of_the_checkpoint():
    """The first convolution with its batch norm, computed by hand, is the folded one."""
    held = read_weights(model.checkpoint())
    weight, bias = network.fold_batch_norm(held, "_conv_stem", "_bn0")
    patch = np.random.default_rng(7).normal(size=(3, 3, 3)).astype(np.float32)
    plain = (held["_conv_stem.weight"] * patch).sum(axis=(1, 2, 3))
    normed = (plain - held["_bn0.running_mean"]) / np.sqrt(held["_bn0.running_var"] + 1e-3)
    wanted = normed * held["_bn0.weight"] + held["_bn0.bias"]
    assert np.allclose((weight * patch).sum(axis=(1, 2, 3)) + bias, wanted, atol=1e-4)


class Evil:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


def written(tmp_path: Path, tensors: object, *after: bytes) -> Path:
    file = tmp_path / "weights.pth"
    head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
    file.write_bytes(head + (tensors if isinstance(tensors, bytes) else pickle.dumps(tensors, 2)) + b"".join(after))
    return file


def test_a_checkpoint_that_wants_to_run_code_is_refused_and_runs_none(tmp_path: Path):
    proof = tmp_path / "code was run"
    with pytest.raises(BadCheckpointError, match=r"mkdir"):
        read_weights(written(tmp_path, OrderedDict(a=Evil(proof))))
    assert not proof.exists()


def tensor_pickle(shape: bytes = b"(K\x02t", strides: bytes = b"(K\x01t") -> bytes:
    """{"a": tensor of storage "0" with two floats}, as PyTorch writes it."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02NtQ"
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + b"K\x00"
        + shape
        + strides
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )
    return b"\x80\x02}X\x01\x00\x00\x00a" + tensor + b"s."


def numbers(*values: float) -> bytes:
    return pickle.dumps(["0"], 2) + struct.pack(f"<q{len(values)}f", len(values), *values)


def test_a_tensor_is_read_with_its_strides(tmp_path: Path):
    assert read_weights(written(tmp_path, tensor_pickle(), numbers(1.5, -2)))["a"].tolist() == [1.5, -2]


def test_a_tensor_outside_of_its_numbers_is_refused(tmp_path: Path):
    with pytest.raises(BadCheckpointError, match="exceeds its storage"):
        read_weights(written(tmp_path, tensor_pickle(shape=b"(K\x05t"), numbers(1.5, -2)))


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_checkpoint_that_is_cut_off_is_refused(tmp_path: Path, part: float):
    whole = model.checkpoint().read_bytes()
    file = tmp_path / "cut.pth"
    file.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(BadCheckpointError):
        read_weights(file)


def test_weights_that_are_not_those_of_their_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "efficientnet-lite0-57934424.pth").write_bytes(b"something else")
    monkeypatch.setattr(model, "files", lambda _: tmp_path)
    with pytest.raises(BadCheckpointError, match="damaged; install the package again"):
        model.checkpoint()


# -- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often the graph is built; a small one stands for it."""
    counted: list[int] = []
    monkeypatch.setattr(model, "read_weights", lambda _: {})
    monkeypatch.setattr(network, "build_graph", lambda _: counted.append(1) or b"graph" * 1000)
    return counted


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_the_model_is_made_once_and_then_taken_from_the_cache(tmp_path: Path, built: list[int]):
    assert model.load_or_make(tmp_path) == model.load_or_make(tmp_path) == b"graph" * 1000
    assert len(built) == 1
    assert "-0.1.0-" in only_file(tmp_path).name  # the package's version


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 5032])
def test_a_damaged_file_in_the_cache_is_made_again(tmp_path: Path, built: list[int], damage: bytes):
    model.load_or_make(tmp_path)
    only_file(tmp_path).write_bytes(damage)
    assert model.load_or_make(tmp_path) == b"graph" * 1000
    held = only_file(tmp_path).read_bytes()
    assert held[:32] == hashlib.sha256(held[32:]).digest()
    assert len(built) == 2


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, built: list[int]):
    (tmp_path / "models").write_text("a file where the folder should be")
    assert model.load_or_make(tmp_path / "models") == b"graph" * 1000


def test_many_at_once_leave_one_whole_file(tmp_path: Path, built: list[int]):
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(model.load_or_make(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"graph" * 1000] * 8
    held = only_file(tmp_path).read_bytes()
    assert held[:32] == hashlib.sha256(held[32:]).digest()


def test_two_processes_that_make_the_model_at_once_both_have_it(tmp_path: Path):
    code = (
        "from pathlib import Path; from frazil.extract.engine import context as s\n"
        "from frazil.extract.vision import model\n"
        f"s.set_context(s.ExtractorContext(Path({str(tmp_path)!r}))); print(model.load_session().get_inputs()[0].shape)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate()[0] for p in both] == ["[1, 3, 224, 224]\n"] * 2
    assert only_file(tmp_path / "models").stat().st_size > 18_000_000


@pytest.mark.parametrize("said", [[], [ExtractorContext(None)]])
def test_the_folder_of_the_cache_is_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[ExtractorContext]
):
    monkeypatch.setattr(context, "_used", said)
    monkeypatch.setenv("FRAZIL_CACHE", str(tmp_path / "mine"))
    assert context.cache_folder() == tmp_path / "mine"
