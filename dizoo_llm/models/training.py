"""The ``Trainer`` of ``transformers``, as the programs here use it."""
import os
from typing import Any, Callable, Dict, Sequence

from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ding_common import ConfigError


class Report(TrainerCallback):
    """Evaluates before the first step and after the last one. Subclasses define ``evaluate`` and when else it runs."""

    def __init__(self, path: str) -> None:
        self.path, self.step, self.value = path, -1, 0.0
        if os.path.exists(path):
            os.remove(path)

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs) -> None:
        self.evaluate(0, kwargs['model'])

    def on_train_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs) -> None:
        if self.step != state.global_step:
            self.evaluate(state.global_step, kwargs['model'])

    def evaluate(self, step: int, model: PreTrainedModel) -> None:
        raise NotImplementedError


def make_folder(folder: str) -> str:
    """Create ``exp_name`` and the folder of the trainer in it, which is returned."""
    try:
        os.makedirs(os.path.join(folder, 'trainer'), exist_ok=True)
    except OSError as error:
        raise ConfigError(f'main_config.exp_name = {folder!r}: {error.strerror}: {error.filename}') from error
    return os.path.join(folder, 'trainer')


def fit(
        model: PreTrainedModel,
        rows: Sequence[Any],
        collate: Callable,
        report: Report,
        folder: str,
        seed: int,
        arguments: Dict[str, Any],
        kind: type = Trainer
) -> None:
    """Train a model without checkpoints, progress bars or trackers. ``seed`` is that of the order of rows."""
    args = TrainingArguments(
        output_dir=folder,
        save_strategy='no',
        report_to=[],
        seed=seed,
        data_seed=seed,
        disable_tqdm=True,
        remove_unused_columns=False,
        **arguments
    )
    trainer = kind(model=model, args=args, train_dataset=rows, data_collator=collate, callbacks=[report])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
