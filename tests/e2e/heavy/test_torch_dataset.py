"""Datasets in torch's DataLoader and torchdata's StatefulDataLoader: workers of every kind, exact states."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from dataset_shards import image_bytes, put_tars  # noqa: E402
from forebay_node import Node  # noqa: E402

FIELDS = {"bin": "bytes", "cls": int}
METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]):
        with forebay.connect(str(root / "n.sock")) as node:
            node.create_bucket("images")
            yield forebay.Dataset(put_tars(node, "images/d", shards=7, samples=30), fields=FIELDS, node=node)


def numbers(batches):
    return [int(number) for batch in batches for number in batch["cls"]]


@pytest.mark.parametrize("method", METHODS)
def test_by_number_in_workers(images, method):
    loader = torch.utils.data.DataLoader(
        images.torch(), batch_size=10, shuffle=True, num_workers=2, multiprocessing_context=method
    )
    seen = []
    for batch in loader:
        assert isinstance(batch["cls"], torch.Tensor)
        for number, view in zip(batch["cls"].tolist(), batch["bin"], strict=True):
            assert bytes(view) == image_bytes(number)
            seen.append(number)
    assert sorted(seen) == list(range(210))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_batches_of_workers_come_in_the_order_of_the_loader(images, workers, tail):
    options = {"batch_size": 8, "shuffle": "window", "window": 64, "seed": 5, "tail": tail}
    wanted = numbers(images.loader(**options))
    loader = torch.utils.data.DataLoader(
        images.torch(iterable=True, **options), batch_size=None, num_workers=workers
    )
    assert numbers(loader) == wanted
    assert len(loader) == len(images.loader(**options))


@pytest.mark.parametrize("method", METHODS)
def test_single_samples_of_workers_come_once(images, method):
    samples = images.torch(iterable=True, shuffle="global", seed=5, tail="pad")
    loader = torch.utils.data.DataLoader(samples, batch_size=8, num_workers=2, multiprocessing_context=method)
    seen = numbers(loader)
    assert set(seen) == set(range(210))
    assert len(seen) == 224


def test_ranks_split_before_workers(images):
    options = {"batch_size": 5, "shuffle": "global", "seed": 1, "world_size": 2}
    for rank in range(2):
        samples = images.torch(iterable=True, rank=rank, **options)
        loader = torch.utils.data.DataLoader(samples, batch_size=None, num_workers=2)
        assert numbers(loader) == numbers(images.loader(rank=rank, **options))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_a_stateful_loader_resumes_exactly(images, workers, batch_size):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make():
        options = {} if batch_size is None else {"batch_size": batch_size}
        samples = images.torch(iterable=True, shuffle="window", window=64, seed=3, **options)
        return StatefulDataLoader(samples, batch_size=4 if batch_size is None else None, num_workers=workers)

    whole = [numbers([batch]) for batch in make()]
    for done in (1, 7, 20):
        loader = make()
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state = loader.state_dict()
        del batches
        resumed = make()
        resumed.load_state_dict(state)
        assert [numbers([batch]) for batch in resumed] == whole[done:]


@pytest.mark.parametrize(("workers", "persistent", "method"), [
    (0, False, None),
    (2, False, "fork"),
    (2, True, "fork"),
    (2, False, "spawn"),
    (2, True, "forkserver"),
])
def test_every_iteration_is_the_next_epoch(images, workers, persistent, method):
    options = {"batch_size": 8, "shuffle": "global", "seed": 5}
    epochs = [numbers(images.loader(epoch=epoch, **options)) for epoch in range(6)]
    samples = images.torch(iterable=True, **options)
    loader = torch.utils.data.DataLoader(
        samples,
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    assert numbers(loader) == epochs[0]
    assert numbers(loader) == epochs[1]
    # Left in the middle, as loops with a limit on batches do.
    assert numbers([next(iter(loader))]) == epochs[2][:8]
    assert numbers(loader) == epochs[3]
    # A program that seeds torch alike for every epoch does not get the same epoch again.
    for epoch in (4, 5):
        torch.manual_seed(1)
        assert numbers(loader) == epochs[epoch]
    samples.set_epoch(1)
    assert numbers(loader) == epochs[1]
    assert numbers(loader) == epochs[2]


def iterate(samples, results):
    results.put([numbers(samples), numbers(samples)])


@pytest.mark.parametrize("method", METHODS)
def test_ranks_that_share_a_dataset_count_epochs_for_themselves(images, method):
    options = {"batch_size": 8, "shuffle": "global", "seed": 5}
    epochs = [numbers(images.loader(epoch=epoch, **options)) for epoch in range(2)]
    samples = images.torch(iterable=True, **options)
    context = torch.multiprocessing.get_context(method)
    results = context.Queue()
    ranks = [context.Process(target=iterate, args=(samples, results)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    assert [results.get(timeout=60) for _ in ranks] == [epochs, epochs]
    for rank in ranks:
        rank.join()


def on_ranks(images, world_size, **options):
    """The iterable form of every rank."""
    options = {"shuffle": "global", "seed": 3, **options}
    return [images.torch(iterable=True, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


@pytest.mark.parametrize(("world_size", "batch_size"), [(4, 5), (1, 5), (2, 10), (3, 3)])
def test_a_stateful_loader_resumes_on_other_ranks(images, world_size, batch_size):
    from torchdata.stateful_dataloader import StatefulDataLoader

    whole = numbers(images.loader(batch_size=1, shuffle="global", seed=3))
    before = [StatefulDataLoader(one, batch_size=None) for one in on_ranks(images, 2, batch_size=5)]
    seen = []
    walks = [iter(loader) for loader in before]
    for _ in range(7):
        seen += numbers(next(walk) for walk in walks)
    state = before[0].state_dict()
    assert seen == whole[:70]
    after = [StatefulDataLoader(one, batch_size=None) for one in on_ranks(images, world_size, batch_size=batch_size)]
    for loader in after:
        loader.load_state_dict(state)
    walks = [iter(loader) for loader in after]
    rest = []
    for _ in range(2):
        rest += numbers(next(walk) for walk in walks)
    # And once more, from a state that was taken after a resume.
    state = after[-1].state_dict()
    again = StatefulDataLoader(on_ranks(images, 1, batch_size=4)[0], batch_size=None)
    again.load_state_dict(state)
    rest += numbers(again)
    left = 210 - 70 - 2 * world_size * batch_size
    assert rest == whole[70 : 210 - left % 4]


@pytest.mark.parametrize(("workers", "batch_size"), [(2, 5), (0, None)])
def test_a_state_that_other_ranks_cannot_use_is_refused(images, workers, batch_size):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(world_size):
        samples = on_ranks(images, world_size, batch_size=batch_size)[0]
        return StatefulDataLoader(samples, batch_size=None, num_workers=workers)

    loader = make(2)
    walk = iter(loader)
    next(walk)
    state = loader.state_dict()
    other = make(1)
    other.load_state_dict(state)
    with pytest.raises(forebay.InvalidInputError, match="resume with the same"):
        next(iter(other))


@pytest.fixture(scope="module")
def pictures(images):
    """Grey images whose pixels say where they were cut."""
    import struct
    import zlib

    def png(number):
        chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))  # noqa: E731
        rows = b"".join(b"\0" + bytes((row * 16 + column) for column in range(16)) for row in range(16))
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

    name = put_tars(images.node, "images/pictures", shards=2, samples=16, extra=lambda number: {"png": png(number)})
    return forebay.Dataset(name, {"png": "gray:random_crop=4", "cls": int}, images.node)


def cuts(loader):
    """Where each sample was cut."""
    return {int(number): int(pixels[0, 0]) for batch in loader for number, pixels in zip(batch["cls"], batch["png"], strict=True)}


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_random_steps_by_number_are_those_of_seed_epoch_and_sample(pictures, workers, persistent):
    samples = pictures.torch(seed=5)
    options = {"batch_size": 4, "num_workers": workers, "persistent_workers": persistent}
    loader = torch.utils.data.DataLoader(samples, sampler=samples.sampler(shuffle=True), **options)
    first, second = cuts(loader), cuts(loader)
    assert len(first) == 32 and len(set(first.values())) > 10
    assert sum(first[number] == second[number] for number in first) < 10
    # Whatever the order and the workers, the same epoch has the same pixels.
    again = torch.utils.data.DataLoader(samples, sampler=samples.sampler(shuffle=False, epoch=1), batch_size=8)
    assert cuts(again) == second
    other = pictures.torch(seed=6)
    assert cuts(torch.utils.data.DataLoader(other, sampler=other.sampler(), batch_size=4)) != first
    # With torch's own sampler, told the epoch or not.
    plain = torch.utils.data.DataLoader(samples, shuffle=True, **options)
    if workers and not persistent:
        assert cuts(plain) == first and cuts(plain) == second
    else:
        with pytest.raises(forebay.InvalidInputError, match="samples.set_epoch"):
            cuts(plain)
    plain = torch.utils.data.DataLoader(samples, shuffle=True, **options)
    for epoch, wanted in [(1, second), (0, first)]:
        samples.set_epoch(epoch)
        assert cuts(plain) == wanted
    if not workers:
        with pytest.raises(forebay.InvalidInputError, match="come a second time"):
            for _ in range(2):
                cuts(plain)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_random_steps_of_the_iterable_form_are_those_of_the_loader(pictures, workers, persistent):
    options = {"batch_size": 4, "shuffle": "global", "seed": 5}
    epochs = [cuts(pictures.loader(epoch=epoch, **options)) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    samples = pictures.torch(iterable=True, **options)
    loader = torch.utils.data.DataLoader(
        samples, batch_size=None, num_workers=workers, persistent_workers=persistent
    )
    assert [cuts(loader), cuts(loader)] == epochs


def test_a_sample_that_a_sampler_repeats_is_cut_in_another_way(pictures):
    samples = pictures.torch()
    often = torch.utils.data.WeightedRandomSampler([1.0] + [0.0] * 31, 20)
    loader = torch.utils.data.DataLoader(samples, sampler=samples.sampler(often), batch_size=5)
    places = [int(pixels[0, 0]) for batch in loader for pixels in batch["png"]]
    assert len(set(places)) > 10

