"""Decoding off the interpreter: images against Pillow, JSON and arrays against their own libraries, packing, faults."""

import hashlib
import io
import json
import math
import random

import numpy as np
import pytest
from PIL import Image, ImageOps

import forebay
from dataset_shards import put_tars


def surface(number: int, size: tuple[int, int], mode: str) -> Image.Image:
    """An image with gradients and edges, as lossy formats like them; `size` is width and height."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    channels = [x * 255 // width, y * 255 // height, (x + y + number * 20) % 256, 255 - x * 200 // width]
    pixels = np.stack(channels, axis=-1).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2, :3] = (number * 40 % 256, 90, 200)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def encoded(image: Image.Image, format: str, **options) -> bytes:  # noqa: A002
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def dataset(node, bucket: str, bodies: list[bytes], how, field: str = "img", **options) -> forebay.Dataset:
    """A dataset of these bodies, read as `how`."""
    node.create_bucket(bucket)
    name = put_tars(node, f"{bucket}/d", shards=1, samples=len(bodies), extra=lambda number: {field: bodies[number]})
    return forebay.Dataset(name, fields={field: how, "cls": int}, node=node, **options)


def difference(one, other) -> float:
    """The mean distance of two images, in levels of 256."""
    assert one.shape == other.shape
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


STORED = [
    ("PNG", "RGB", {}, 0),
    ("PNG", "RGBA", {}, 0),
    ("PNG", "L", {}, 0),
    ("PNG", "LA", {}, 0),
    ("WEBP", "RGB", {"lossless": True}, 0),
    ("WEBP", "RGBA", {"lossless": True}, 0),
    # Decoders of lossy formats may round and smooth colours differently.
    ("WEBP", "RGB", {"quality": 90}, 2),
    ("JPEG", "RGB", {"quality": 90}, 1),
    ("JPEG", "RGB", {"quality": 90, "subsampling": 0}, 1),
    ("JPEG", "RGB", {"quality": 90, "progressive": True}, 1),
    ("JPEG", "L", {"quality": 90}, 1),
]


@pytest.mark.parametrize(("format", "mode", "options", "tolerance"), STORED)
def test_pixels_are_those_of_pillow(shared_embedded, request, format, mode, options, tolerance):  # noqa: A002
    body = encoded(surface(3, (61, 47), mode), format, **options)
    bucket = "pixels-" + str(abs(hash(request.node.name)))
    image = dataset(shared_embedded, bucket, [body], "image")[0]["img"]
    assert difference(image, np.asarray(Image.open(io.BytesIO(body)))) <= tolerance
    name = f"forebay://{bucket}/d/{{0000..0000}}.tar"
    for how, wanted in [("rgb", "RGB"), ("gray", "L")]:
        found = forebay.Dataset(name, fields={"img": how}, node=shared_embedded)[0]["img"]
        assert found.dtype == np.uint8
        assert difference(found, np.asarray(Image.open(io.BytesIO(body)).convert(wanted))) <= tolerance


def test_palettes_bits_and_sixteen_bits_are_expanded(shared_embedded):
    coloured = surface(1, (40, 30), "RGB").quantize(16)
    bits = surface(1, (41, 30), "L").convert("1")
    deep = Image.fromarray((np.arange(1200, dtype=np.uint16) * 50).reshape(30, 40))
    bodies = [encoded(image, "PNG") for image in (coloured, bits, deep)]
    ds = dataset(shared_embedded, "expanded", bodies, "image")
    assert np.array_equal(ds[0]["img"], np.asarray(coloured.convert("RGB")))
    assert np.array_equal(ds[1]["img"], np.asarray(bits.convert("L")))
    assert ds[2]["img"].dtype == np.uint16
    assert np.array_equal(ds[2]["img"], np.asarray(deep))


def test_a_jpeg_in_cmyk_becomes_rgb(shared_embedded):
    image = surface(2, (48, 32), "RGB")
    body = encoded(image.convert("CMYK"), "JPEG", quality=95)
    found = dataset(shared_embedded, "cmyk", [body], "rgb")[0]["img"]
    assert difference(found, np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))) <= 3


def resized(image: Image.Image, how: str) -> Image.Image:
    """What Pillow and torchvision's sizes make of it."""
    bilinear = Image.Resampling.BILINEAR
    if how == "32x24":
        return image.resize((24, 32), bilinear)
    if how == "cover=32":
        return ImageOps.fit(image, (32, 32), bilinear)
    short = image.resize((int(40 * image.width / image.height), 40), bilinear)
    left, top = round((short.width - 33) / 2), round((40 - 30) / 2)
    return short.crop((left, top, left + 33, top + 30))


@pytest.mark.parametrize("how", ["32x24", "cover=32", "short=40,crop=30x33"])
def test_sizes_and_cuts_are_those_of_pillow(shared_embedded, how):
    bucket = "sizes-" + str(abs(hash(how)))
    images = [surface(number, (97, 61), "RGB") for number in range(3)]
    ds = dataset(shared_embedded, bucket, [encoded(image, "PNG") for image in images], f"rgb:{how}")
    for number, image in enumerate(images):
        assert difference(ds[number]["img"], np.asarray(resized(image, how))) <= 0.6


@pytest.mark.parametrize("name", ["nearest", "box", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_interpolation_is_that_of_pillow(shared_embedded, name, mode):
    """Smaller, larger, and cut to other proportions."""
    how = getattr(Image.Resampling, name.upper())
    image = surface(5, (97, 61), mode)
    bodies, decoder = [encoded(image, "PNG")], "rgb" if mode == "RGB" else "gray"
    theirs = {
        "32x24": image.resize((24, 32), how),
        "130x200": image.resize((200, 130), how),
        "cover=32": ImageOps.fit(image, (32, 32), how),
        "cover=50x20": ImageOps.fit(image, (20, 50), how),
    }
    for steps, expected in theirs.items():
        bucket = "how-" + hashlib.sha256(f"{name} {mode} {steps}".encode()).hexdigest()[:12]
        found = dataset(shared_embedded, bucket, bodies, f"{decoder}:interpolation={name},{steps}")[0]["img"]
        assert found.shape[:2] == (expected.height, expected.width)
        assert difference(found, np.asarray(expected)) <= (0 if name == "nearest" else 0.6), steps


@pytest.mark.parametrize(("format", "tolerance"), [("PNG", 0), ("JPEG", 1), ("WEBP", 2)])
def test_orientation_in_exif_is_applied_when_asked_for(shared_embedded, format, tolerance):  # noqa: A002
    bodies = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        bodies.append(encoded(surface(orientation, (61, 47), "RGB"), format, exif=exif))
    as_stored = dataset(shared_embedded, f"exif-{format.lower()}", bodies, "rgb")
    name = f"forebay://exif-{format.lower()}/d/{{0000..0000}}.tar"
    upright = forebay.Dataset(name, fields={"img": "rgb:exif"}, node=shared_embedded)
    sized = forebay.Dataset(name, fields={"img": "rgb:40x30,exif"}, node=shared_embedded)
    for number, body in enumerate(bodies):
        image = Image.open(io.BytesIO(body))
        assert difference(as_stored[number]["img"], np.asarray(image)) <= tolerance
        turned = ImageOps.exif_transpose(image)
        assert difference(upright[number]["img"], np.asarray(turned)) <= tolerance
        small = turned.resize((30, 40), Image.Resampling.BILINEAR)
        assert difference(sized[number]["img"], np.asarray(small)) <= tolerance + 0.6


def test_random_cuts_resume_on_another_world_size(shared_embedded):
    body = encoded(surface(0, (40, 40), "RGB"), "PNG")
    ds = dataset(shared_embedded, "random-cuts", [body] * 64, "rgb:random_crop=32,random_flip")
    options = {"shuffle": "window", "seed": 5}
    whole = np.concatenate([batch["img"] for batch in ds.loader(batch_size=16, **options)])
    assert len({one.tobytes() for one in whole}) > 32
    first = ds.loader(batch_size=16, **options)
    next(iter(first))
    ranks = []
    for rank in range(2):
        loader = ds.loader(batch_size=8, rank=rank, world_size=2, **options)
        loader.load_state_dict(first.state_dict())
        ranks.append([batch["img"] for batch in loader])
    rest = np.concatenate([part for step in zip(*ranks, strict=True) for part in step])
    assert np.array_equal(rest, whole[16:])
    assert np.array_equal(ds[0]["img"], np.asarray(Image.open(io.BytesIO(body)))[4:36, 4:36])


def test_random_resized_cuts_follow_seed_epoch_and_position(shared_embedded):
    body = encoded(surface(0, (90, 40), "RGB"), "PNG")
    steps = "rgb:random_resized_crop=24x20,scale=0.2..0.9,ratio=3/4..4/3,random_flip"
    ds = dataset(shared_embedded, "resized-cuts", [body] * 48, steps)
    options = {"shuffle": "window", "seed": 5}
    loader = ds.loader(batch_size=16, **options)
    whole = np.concatenate([batch["img"] for batch in loader])
    assert whole.shape == (48, 24, 20, 3)
    assert len({one.tobytes() for one in whole}) > 40
    ranks = [ds.loader(batch_size=8, rank=rank, world_size=2, **options) for rank in range(2)]
    steps = zip(*([batch["img"] for batch in rank] for rank in ranks), strict=True)
    assert np.array_equal(np.concatenate([part for step in steps for part in step]), whole)
    assert not np.array_equal(np.concatenate([batch["img"] for batch in loader]), whole)
    # By number there is no epoch: the middle, with the proportions that are nearest.
    middle = Image.open(io.BytesIO(body)).crop((18, 0, 71, 40)).resize((20, 24), Image.Resampling.BILINEAR)
    assert difference(ds[0]["img"], np.asarray(middle)) <= 1


def test_images_of_one_size_are_one_array_and_others_a_list(shared_embedded):
    bodies = [encoded(surface(number, (40 + number // 4, 30), "RGB"), "PNG") for number in range(8)]
    ds = dataset(shared_embedded, "packing", bodies, "rgb")
    first, second = ds.loader(batch_size=4)
    assert first["img"].shape == (4, 30, 40, 3)
    assert first["img"].flags.writeable
    first["img"][:] = 0
    assert second["img"].shape == (4, 30, 41, 3)
    assert np.array_equal(second["img"][1], np.asarray(Image.open(io.BytesIO(bodies[5]))))
    (mixed,) = ds.loader(batch_size=8)
    assert [image.shape for image in mixed["img"]] == [(30, 40, 3)] * 4 + [(30, 41, 3)] * 4
    fixed = forebay.Dataset("forebay://packing/d/{0000..0000}.tar", fields={"img": "rgb:16x16"}, node=shared_embedded)
    (batch,) = fixed.loader(batch_size=8)
    assert batch["img"].shape == (8, 16, 16, 3)


def test_an_array_outlives_its_batch_and_its_loader(shared_embedded):
    bodies = [encoded(surface(number, (200, 160), "RGB"), "PNG") for number in range(24)]
    ds = dataset(shared_embedded, "outlives", bodies, "rgb")
    with ds.loader(batch_size=2) as loader:
        kept = [batch["img"] for step, batch in enumerate(loader) if step % 3 == 0]
    # Memory is used again by later batches, but never while somebody looks.
    for step, images in enumerate(kept):
        for at, image in enumerate(images):
            assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(bodies[step * 6 + at]))))


def test_batches_are_the_same_with_any_number_of_threads(shared_embedded):
    bodies = [encoded(surface(number, (50, 40), "RGB"), "JPEG") for number in range(30)]
    ds = dataset(shared_embedded, "threads", bodies, "rgb:cover=20")

    def epoch(**options) -> list[tuple[list[int], bytes]]:
        loader = ds.loader(batch_size=7, shuffle="window", seed=3, tail="pad", **options)
        return [(batch["cls"].tolist(), batch["img"].tobytes()) for batch in loader]

    assert epoch(decode_threads=1, threads=1) == epoch(decode_threads=5, threads=3)


def bomb() -> bytes:
    """A PNG of a few bytes that claims 60,000 x 60,000 pixels."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_is_cut_off_is_a_bad_sample_as_for_pillow(shared_embedded, progressive):
    body = encoded(surface(3, (128, 96), "RGB"), "JPEG", progressive=progressive)
    cuts = [len(body) // 2, len(body) - 40, len(body) - 2]
    bodies = [body, *(body[:cut] for cut in cuts), body + b"something behind it"]
    ds = dataset(shared_embedded, f"cut-off-{progressive}".lower(), bodies, "rgb")
    for number, one in enumerate(bodies):
        if number in (0, 4):
            assert np.array_equal(ds[number]["img"], ds[0]["img"])
            continue
        with pytest.raises(OSError, match="truncated"):
            Image.open(io.BytesIO(one)).load()
        with pytest.raises(forebay.CorruptError, match="JPEG"):
            ds[number]


def test_images_that_cannot_be_decoded_are_bad_samples(shared_embedded):
    good = [encoded(surface(number, (32, 24), "RGB"), "JPEG") for number in range(12)]
    bodies = list(good)
    bodies[1] = good[1][: len(good[1]) // 2]
    bodies[4] = bomb()
    bodies[6] = b"GIF89a and so on"
    bodies[9] = b""
    ds = dataset(shared_embedded, "broken", bodies, "rgb")
    bad = [1, 4, 6, 9]
    for number, reason in zip(bad, ["damaged", "max_pixels", "pil", "no JPEG"], strict=True):
        with pytest.raises(forebay.CorruptError, match=reason) as caught:
            ds[number]
        context = dict(caught.value.context)
        assert (context["field"], context["key"]) == ("img", f"{number:06}")
    with pytest.raises(forebay.CorruptError):
        list(ds.loader(batch_size=4))
    skipping = ds.loader(batch_size=4, on_error="skip")
    assert sum((batch["cls"].tolist() for batch in skipping), []) == [n for n in range(12) if n not in bad]
    assert [one.number for one in skipping.stats().bad] == bad

    def replaced(world_size: int, batch_size: int) -> list[int]:
        ranks = [
            ds.loader(batch_size, on_error="substitute", shuffle="global", seed=5, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        steps = zip(*[[batch["cls"].tolist() for batch in loader] for loader in ranks], strict=True)
        return [number for step in steps for numbers in step for number in numbers]

    alone = replaced(1, 4)
    assert len(alone) == 12
    assert not set(alone) & set(bad)
    assert replaced(2, 3) == alone


def documents() -> list[str]:
    rng = random.Random(4)
    numbers = [rng.uniform(-1e6, 1e6) * 10.0 ** rng.randint(-30, 30) for _ in range(50)]
    return [
        json.dumps({"numbers": numbers, "text": 'größe "\\/\b\n\t 😀', "nested": [[], {}, [None, True, False]]}),
        json.dumps("x" * 5000),
        '{"a": 1, "a": 2, "big": 123456789012345678901234567890, "small": -0, "e": 1E5}',
        '[NaN, Infinity, -Infinity]',
        '"\\ud83d\\ude00 \\ud800"',
        " [1.7976931348623157e309, 5e-324, 18446744073709551615, -9223372036854775808] ",
        "\ufeff{}",
    ]


def test_json_is_what_python_reads(shared_embedded):
    texts = documents()
    ds = dataset(shared_embedded, "documents", [text.encode() for text in texts], "json", field="json")
    (batch,) = ds.loader(batch_size=len(texts))

    def same(one, other) -> bool:
        if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
            return math.isnan(other)
        if isinstance(one, list):
            return len(one) == len(other) and all(map(same, one, other))
        return type(one) is type(other) and one == other

    for number, text in enumerate(texts):
        wanted = json.loads(text.encode())
        assert same(batch["json"][number], wanted), text
        assert same(ds[number]["json"], wanted), text


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_arrays_are_what_numpy_reads(shared_embedded):
    arrays = [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(5, dtype=np.uint8),
        np.empty((0, 3), dtype=np.float16),
        np.array(["2020-01-01", "2021-02-03"], dtype="datetime64[D]"),
        np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
        np.array(["ab", "c"]),
        np.array([1 + 2j]),
    ]
    ds = dataset(shared_embedded, "arrays", [npy(array) for array in arrays], "npy", field="npy")
    (batch,) = ds.loader(batch_size=len(arrays))
    for found, wanted in zip(batch["npy"], arrays, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(found, wanted)


def test_arrays_of_one_shape_are_packed(shared_embedded):
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4) + number for number in range(6)]
    ds = dataset(shared_embedded, "stacks", [npy(array) for array in arrays], "npy", field="npy")
    (batch,) = ds.loader(batch_size=6)
    assert np.array_equal(batch["npy"], np.stack(arrays))


def test_a_function_of_map_runs_after_the_decoders(shared_embedded):
    bodies = [encoded(surface(number, (20, 10), "RGB"), "PNG") for number in range(4)]
    ds = dataset(shared_embedded, "mapped", bodies, "rgb").map(lambda sample: {"mean": float(sample["img"].mean())})
    (batch,) = ds.loader(batch_size=4)
    wanted = [np.asarray(Image.open(io.BytesIO(body))).mean() for body in bodies]
    assert batch["mean"].tolist() == pytest.approx(wanted)


def test_an_array_that_only_claims_to_be_one_is_a_bad_sample(shared_embedded):
    def npy(dtype, shape, data=b""):
        header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data

    good = npy("<i4", "(2,)", bytes(8))
    claims = [npy("<f1", "(1,)", bytes(8)), npy("<i4", f"(0, {2**62})"), npy("<i4", "(" + "1, " * 70 + ")", bytes(4))]
    ds = dataset(shared_embedded, "claims", [good, *claims, good], "npy")
    for number in (1, 2, 3):
        with pytest.raises(Exception):  # noqa: B017, PT011 - ours or numpy's
            ds[number]
    loader = ds.loader(batch_size=5, on_error="skip")
    assert [len(batch["img"]) for batch in loader] == [2]
    assert sorted(bad.number for bad in loader.stats().bad) == [1, 2, 3]


def test_pillow_itself_can_be_asked_for(shared_embedded):
    body = encoded(surface(0, (20, 10), "RGB"), "GIF")
    found = dataset(shared_embedded, "pillow", [body], "pil")[0]["img"]
    assert isinstance(found, Image.Image)
    assert found.size == (20, 10)


@pytest.mark.parametrize("how", ["rgb:", "rgb:224", "rgb:0x4", "image:turn=3", "gray:crop=axb", "bgr"])
def test_steps_that_mean_nothing_are_refused(how):
    with pytest.raises(forebay.InvalidInputError):
        forebay.Dataset("b/d.tar", fields={"img": how})


def test_a_wait_for_decoding_is_told(shared_embedded):
    bodies = [encoded(surface(number, (900, 700), "RGB"), "PNG") for number in range(4)]
    ds = dataset(shared_embedded, "waits", bodies, "rgb")
    with ds.loader(batch_size=4, decode_threads=1, prefetch="off") as loader:
        next(iter(loader))
        stats = loader.stats()
    assert stats.wait_decode_seconds > 0
    assert "decode" in stats.summary()
