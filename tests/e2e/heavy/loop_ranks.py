"""One rank of a training loop of another library, which writes down the numbers of the samples that it saw.

`python loop_ranks.py LOOP FORM SOCKET DATASET FOLDER`: for each epoch one list, in `FOLDER/<rank>.json`. Started by torchrun, or alone where the library starts
its ranks itself (Lightning, Ray Train).
"""

import json
import os
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import forebay

torch.set_num_threads(1)
EPOCHS, BATCH = 2, 4


def dataset(socket, name):
    return forebay.Dataset(name, {"cls": int, "x": tensor_of}, forebay.connect(socket))


def tensor_of(view):
    """A field that a model can be trained on."""
    return numpy.frombuffer(view, dtype=numpy.uint8)[:4].astype(numpy.float32)


def made(form, ds):
    """What a script gives to its loop."""
    options = {"shuffle": "global", "seed": 3}
    if form == "loader":
        return ds.loader(BATCH, **options)
    if form == "map":
        return DataLoader(ds.torch(), batch_size=BATCH, shuffle=True)
    workers = 2 if form.endswith("workers") else 0
    method = "spawn" if form.startswith("spawned") else None
    if "samples" in form:
        samples = ds.torch(iterable=True, **options)
        return DataLoader(samples, batch_size=BATCH, num_workers=workers, multiprocessing_context=method)
    samples = ds.torch(iterable=True, batch_size=BATCH, **options)
    return DataLoader(samples, batch_size=None, num_workers=workers, multiprocessing_context=method)


def numbers(batch):
    return [int(number) for number in batch["cls"]]


def write(folder, rank, epochs):
    Path(folder, f"{rank}.json").write_text(json.dumps(epochs))


# --- the loops ---


def by_hand(form, ds, folder):
    loader = made(form, ds)
    dist.init_process_group("gloo")
    write(folder, dist.get_rank(), [[n for batch in loader for n in numbers(batch)] for _ in range(EPOCHS)])
    dist.destroy_process_group()


def by_accelerate(form, ds, folder):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    form, _, dispatch = form.partition(":")
    choice = {"": None, "dispatch": True, "shard": False}[dispatch]
    config = DataLoaderConfiguration(dispatch_batches=choice)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(made(form, ds))
    write(folder, accelerator.process_index, [[n for batch in loader for n in numbers(batch)] for _ in range(EPOCHS)])
    accelerator.end_training()


class Model(torch.nn.Module):
    """Trains on nothing much and remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def forward(self, cls, x, **_):
        self.seen += [int(number) for number in cls]
        return {"loss": self.layer(torch.as_tensor(numpy.stack([torch.as_tensor(row) for row in x]))).mean()}


def by_trainer(form, ds, folder):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model, epochs = Model(), []

    class Epochs(TrainerCallback):
        def on_epoch_begin(self, *_, **__):
            model.seen = []

        def on_epoch_end(self, *_, **__):
            epochs.append(model.seen)

    given = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    samples = ds.torch() if form == "map" else ds.torch(iterable=True, shuffle="global", seed=3)
    trainer = Trainer(model, given, train_dataset=samples, callbacks=[Epochs()])
    trainer.train()
    write(folder, given.process_index, epochs)


def by_lightning(form, ds, folder):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen, self.epochs, self.validated = [], [], []

        def training_step(self, batch, _):
            self.seen += numbers(batch)
            return self.layer(torch.stack([torch.as_tensor(row) for row in batch["x"]])).mean()

        def validation_step(self, batch, _):
            self.validated.append(numbers(batch))

        def on_train_epoch_end(self):
            self.epochs.append(self.seen)
            self.seen = []

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    # Made before there are ranks, as scripts do.
    training, validation = made(form, ds), ds.loader(BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        num_sanity_val_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    module = Module()
    trainer.fit(module, training, validation)
    write(folder, trainer.global_rank, module.epochs)
    write(folder, f"validated-{trainer.global_rank}", module.validated)


def ray_worker(config):
    import ray.train.torch

    form, folder = config["form"], config["folder"]
    if form == "sent":
        loader = config["loader"]
    else:
        loader = made(form, dataset(config["socket"], config["name"]))
        if isinstance(loader, DataLoader):
            loader = ray.train.torch.prepare_data_loader(loader)
    epochs = []
    for epoch in range(EPOCHS):
        if form == "map":
            loader.sampler.set_epoch(epoch)
        epochs.append([n for batch in loader for n in numbers(batch)])
    write(folder, ray.train.get_context().get_world_rank(), epochs)


def by_ray(form, ds, folder, socket, name):
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    config = {"form": form, "folder": folder, "socket": socket, "name": name}
    if form == "sent":
        # Made in the driver, before there are ranks.
        config["loader"] = ds.loader(BATCH, shuffle="global", seed=3)
    trainer = TorchTrainer(
        ray_worker,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    )
    trainer.fit()
    ray.shutdown()


def by_mesh(form, ds, folder):
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    data, model = {"dp_tp": ("dp", "tp"), "pp_dp": ("dp_shard", "pp")}[form]
    names = (data, model) if form == "dp_tp" else (model, data)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    options = {"shuffle": "global", "seed": 3}
    loader = ds.loader(BATCH, mesh=mesh, **options)
    alike = ds.torch(iterable=True, batch_size=BATCH, mesh=mesh[data], **options)
    epochs = [[n for batch in loader for n in numbers(batch)] for _ in range(EPOCHS)]
    again = DataLoader(alike, batch_size=None, num_workers=1)
    assert [[n for batch in again for n in numbers(batch)] for _ in range(EPOCHS)] == epochs
    write(folder, dist.get_rank(), epochs)
    write(folder, f"place-{dist.get_rank()}", [mesh[data].get_local_rank(), mesh[model].get_local_rank()])
    dist.destroy_process_group()


def main():
    loop, form, socket, name, folder = sys.argv[1:]
    ds = dataset(socket, name)
    if loop == "ray":
        by_ray(form, ds, folder, socket, name)
        return
    {"hand": by_hand, "accelerate": by_accelerate, "trainer": by_trainer, "lightning": by_lightning, "mesh": by_mesh}[loop](
        form, ds, folder
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
