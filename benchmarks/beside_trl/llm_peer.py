"""TRL's side of the benchmark with a pretrained language model: ``python llm_peer.py FOLDER THREADS``."""
import os
import sys
import tempfile

import torch
from datasets import Dataset
from protocol import LEARNING_RATE, Gate, equal_data, gradient_norm, read_work
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from update_peer import Alternate


def right(completions, answer, **kwargs):
    """1 for the number and nothing else."""
    return [float(c[0]['content'].strip() == a) for c, a in zip(completions, answer)]


def main(folder: str, threads: int) -> None:
    """Updates for as long as it is told to."""
    torch.set_num_threads(threads)
    gate, work = Gate(), read_work(folder)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, 'model'))
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, 'model'), dtype=torch.float32)
    alternate = Alternate(gate)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=right,
        train_dataset=Dataset.from_dict(dict(prompt=work['messages'], answer=work['answers'])),
        callbacks=[alternate],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=work['rows'],
            gradient_accumulation_steps=work['groups'] * work['group_size'] // work['rows'],
            num_generations=work['group_size'],
            max_completion_length=work['tokens'],
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
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        return loss.item(), gradient_norm(trainer.model)

    def save(path):
        trainer.model.save_pretrained(path)
        tokenizer.save_pretrained(path)

    gate.check, gate.save = check, save
    trainer.train()


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
