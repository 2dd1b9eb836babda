"""
TRL takes the optimizer steps of a recorded run, on its rows: ``python -m benchmarks.solve.steps_peer FOLDER PAD``.
PAD: whether the embedding of the padding token is ``trained`` or, as ``transformers`` does it, ``frozen``.
"""
import os
import sys

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.beside_trl.protocol import PEER, own_folder


class Keep(TrainerCallback):
    """
    Overview:
        Keeps the weights after each step that the record names.
    """

    def __init__(self, steps) -> None:
        self._steps, self.weights = steps, {}

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        if state.global_step in self._steps:
            self.weights[state.global_step] = {name: p.detach().clone() for name, p in model.named_parameters()}


def padded(rows, side: str):
    """Token ids (B, L) and their mask."""
    longest = max(map(len, rows))
    ids, mask = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
    for i, row in enumerate(rows):
        at = slice(longest - len(row), None) if side == 'left' else slice(len(row))
        ids[i, at], mask[i, at] = row, 1
    return ids, mask


def main(folder: str, pad: str) -> None:
    """Take all steps of ``record.pt`` and save the weights to ``PAD.pt``."""
    record = torch.load(os.path.join(folder, 'record.pt'), weights_only=True)
    keep, updates = Keep(set(record['kept'])), iter(record['updates'])
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, 'model'))
    rows = sum(len(step['adv']) for step in record['updates'][0])
    steps = len(record['updates'][0])

    def recorded(inputs):
        update = next(updates)
        prompt, prompt_mask = padded([p for step in update for p in step['prompts']], 'left')
        completion, mask = padded([c for step in update for c in step['completions']], 'right')
        with torch.no_grad():
            old, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, torch.cat([prompt, completion], 1), torch.cat([prompt_mask, mask], 1),
                completion.shape[1]
            )
        return dict(
            prompt_ids=prompt,
            prompt_mask=prompt_mask,
            completion_ids=completion,
            completion_mask=mask,
            advantages=torch.cat([step['adv'] for step in update]),
            old_per_token_logps=old,
            num_items_in_batch=mask.sum(),
        )

    grpo_trainer.shuffle_sequence_dict = lambda batch: batch  # the record has the rows of each step
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(os.path.join(folder, 'model'), dtype=torch.float64),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        train_dataset=Dataset.from_list([dict(prompt='a')] * rows),
        callbacks=[keep],
        args=GRPOConfig(
            **PEER,
            output_dir=own_folder(),
            per_device_train_batch_size=rows // steps,
            steps_per_generation=steps,
            num_generations=record['group_size'],
            epsilon=record['clip_ratio'],
            scale_rewards='none',
            learning_rate=record['learning_rate'],
            max_steps=steps * len(record['updates']),
        ),
    )
    trainer._generate_and_score_completions = recorded
    if pad == 'trained':
        trainer.model.get_input_embeddings().padding_idx = None
    trainer.train()
    torch.save(keep.weights, os.path.join(folder, f'{pad}.pt'))


if __name__ == '__main__':
    main(*sys.argv[1:])
