"""`watch` as a callback: the hooks of the real frameworks, where they are installed, in the order they come."""

import copy
import pickle
import subprocess
import sys

import pytest
from tests.unit.doctor.watched_loops import Clock

from stoker.doctor.watch import callbacks
from stoker.doctor.watch.callbacks import Hooks

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset


class SlowLoader(DataLoader):
    """Every batch takes 30 ms of the planned clock, every look at the next one included."""

    clock: Clock

    def __iter__(self):
        for batch in super().__iter__():
            self.clock.pass_s(0.03)
            yield batch


def slow_loader(clock, num):
    loader = SlowLoader(TensorDataset(torch.ones(num, 2)), batch_size=1)
    loader.clock = clock
    return loader


def test_hooks_count_steps_and_stalls_and_leave_interludes_out():
    clock, reports = Clock(), []
    hooks = Hooks(warmup=2, clock=clock, on_report=reports.append)
    for _ in range(2):
        hooks.epoch_begins()
        for i in range(30):
            clock.pass_s(0.03)
            hooks.step_begins()
            clock.pass_s(0.01)
            hooks.interlude_ends()  # inside a step: part of it
            hooks.step_ends()
            if i == 10:
                clock.pass_s(500)  # an evaluation
                hooks.interlude_ends()
            if i == 20:
                hooks.disturb()  # a checkpoint is written
                clock.pass_s(900)
        hooks.epoch_ends()
        clock.pass_s(10_000)
    report = reports[-1]
    assert len(reports) == 2
    assert report.stall.max_s == pytest.approx(0.03)
    assert report.step.max_s == pytest.approx(0.01)
    assert report.stall_share == pytest.approx(0.75)
    assert report.num_left_out == 2
    assert report.num_steps == 60


def test_a_pickle_or_copy_is_a_callback_of_its_own_and_leaves_functions_behind():
    hooks = Hooks(warmup=2, on_report=lambda report: None)
    for other in (pickle.loads(pickle.dumps(hooks)), copy.deepcopy(hooks)):
        other.epoch_begins()
        for _ in range(5):
            other.step_begins()
            other.step_ends()
        other.epoch_ends()
        assert (other.report().num_steps, other.report().num_warmup) == (5, 2)
    assert hooks.report().num_steps == 0


@pytest.mark.parametrize(
    ("name", "framework"), [("LightningWatch", "lightning.pytorch"), ("TransformersWatch", "transformers")]
)
def test_a_callback_of_a_framework_can_be_pickled(name, framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    kind = getattr(callbacks, name)
    assert type(pickle.loads(pickle.dumps(kind(warmup=2)))) is kind


def test_lightning_fit_is_watched(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from stoker.doctor.watch.callbacks import LightningWatch

    clock, reports = Clock(), []

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            clock.pass_s(0.01)
            return self.layer(batch[0]).sum()

        def validation_step(self, batch, _):
            clock.pass_s(100)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    watch = LightningWatch(warmup=2, clock=clock, on_report=reports.append)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        val_check_interval=15,
        callbacks=[watch, ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=10)],
    )
    trainer.fit(Model(), slow_loader(clock, 30), DataLoader(TensorDataset(torch.ones(2, 2))))
    report = watch.report()
    assert len(reports) == 2
    assert (report.num_epochs, report.num_steps) == (2, 60)
    assert report.stall.max_s == pytest.approx(0.03)
    assert report.step.max_s == pytest.approx(0.01)
    assert report.verdict.limit == "data"
    assert report.num_left_out > 0


def test_the_hugging_face_trainer_is_watched(tmp_path):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    from stoker.doctor.watch.callbacks import TransformersWatch

    clock, reports = Clock(), []

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            clock.pass_s(0.03)
            return {"x": torch.ones(2), "labels": torch.ones(1)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, labels=None):
            clock.pass_s(0.01)
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Slow(transformers.TrainerCallback):
        """Logging and saving take their time; this callback comes before the watch."""

        def on_log(self, *_, **__):
            clock.pass_s(50)

        def on_save(self, *_, **__):
            clock.pass_s(100)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        logging_steps=7,
        save_steps=11,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    watch = TransformersWatch(warmup=2, clock=clock, on_report=reports.append)
    transformers.Trainer(Model(), arguments, train_dataset=Rows(), callbacks=[Slow(), watch]).train()
    report = watch.report()
    assert len(reports) == 2
    assert (report.num_epochs, report.num_steps) == (2, 60)
    assert report.step.max_s == pytest.approx(0.02)
    assert report.stall.p50_s == pytest.approx(0.06)
    assert report.stall.max_s <= 0.0901
    assert report.verdict.limit == "data"


WITHOUT_FRAMEWORKS = """
import sys

for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
    sys.modules[name] = None
for name in ("Lightning", "Transformers"):
    try:
        exec(f"from stoker.doctor.watch.callbacks import {name}Watch")
    except ImportError as error:
        print(error)
"""


def test_without_the_framework_the_error_names_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True, check=True)
    assert "pip install 'stoker[lightning]'" in done.stdout
    assert "pip install 'stoker[transformers]'" in done.stdout
