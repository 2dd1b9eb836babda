"""TRL's side of the benchmark of whole updates: ``python update_peer.py FOLDER THREADS``."""
import os
import sys
import tempfile

import torch
from datasets import Dataset
from protocol import LEARNING_RATE, Gate, equal_data, gradient_norm, read_work
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Alternate(TrainerCallback):

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self._gate.wait()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        tokens = self.trainer._metrics['train']['completions/mean_length'][-1]
        self._gate.done(tokens=tokens * args.per_device_train_batch_size, updates=state.global_step)


def main(folder: str, threads: int) -> None:
    """Updates for as long as it is told to."""
    torch.set_num_threads(threads)
    gate, work = Gate(), read_work(folder)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, 'model'))
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, 'model'), dtype=torch.float32)
    low = set(work['low'])

    def reward(completion_ids, **kwargs):
        return [sum(token in low for token in ids) / len(ids) for ids in completion_ids]

    alternate = Alternate(gate)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(dict(prompt=work['prompts'])),
        callbacks=[alternate],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=work['groups'] * work['group_size'],
            num_generations=work['group_size'],
            max_completion_length=work['tokens'],
            generation_kwargs=dict(suppress_tokens=list(range(len(tokenizer) - 3, len(tokenizer)))),
            temperature=1.0,
            beta=0.0,
            loss_type='grpo',
            learning_rate=LEARNING_RATE,
            lr_scheduler_type='constant',
            max_grad_norm=1.0,
            max_steps=10 ** 6,
            logging_steps=10 ** 6,
            save_strategy='no',
            report_to=[],
            disable_tqdm=True,
            seed=0,
        ),
    )
    alternate.trainer = trainer

    def check():
        data = equal_data(work, tokenizer)
        inputs = dict(
            prompt_ids=data['prompt'],
            prompt_mask=data['prompt_mask'],
            completion_ids=data['completion'],
            completion_mask=data['mask'],
            advantages=data['adv'],
            old_per_token_logps=data['logp_old'],
        )
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        return loss.item(), gradient_norm(trainer.model)

    gate.check = check
    trainer.train()


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
