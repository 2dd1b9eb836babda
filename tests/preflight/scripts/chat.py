"""Conversations, of a data set that is mapped; a model and a configuration that are objects."""
import re

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward

SYSTEM = 'Answer with <answer>...</answer>.'


def as_chat(row):
    messages = [dict(role='system', content=SYSTEM), dict(role='user', content=row['question'])]
    return dict(prompt=messages, answer=row['answer'].split('#### ')[1])


def correct(prompts, completions, answer, **kwargs):
    found = [re.fullmatch(r'<answer>(.*)</answer>', said[0]['content']) for said in completions]
    return [2.0 if each and each[1] == right else 0.0 for each, right in zip(found, answer)]


rows = Dataset.from_list([dict(question=f'What is {i} + 1?', answer=f'It is\n#### {i + 1}') for i in range(12)])
rows = rows.map(as_chat, remove_columns=['question']).train_test_split(4, seed=0)
model = AutoModelForCausalLM.from_pretrained('some/model', dtype=torch.bfloat16, device_map='auto').to('cuda')
model.config.use_cache = False
args = GRPOConfig('out')
args.max_completion_length = 32
trainer = GRPOTrainer(model, [think_format_reward, correct], args, rows['train'], rows['test'])
trainer.train()
