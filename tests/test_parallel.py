"""Two processes make the run of one; one that dies ends the other."""
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from ding_common import read_json_lines

CONFIG = os.path.join(os.path.dirname(__file__), '..', 'config')
SMALL = '''
import runpy
loaded = runpy.run_path({path!r})
main_config, create_config = loaded['main_config'], loaded['create_config']
main_config.exp_name = {exp_name!r}
main_config.env.stop_value = 1e9
main_config.env.update({env!r})
main_config.policy.multi_gpu = {processes} > 1
main_config.policy.eval.evaluator.eval_freq = 4
for section, keys in {policy!r}.items():
    main_config.policy[section].update(keys) if isinstance(keys, dict) else main_config.policy.update(dict([(section, keys)]))
'''
TOKENS = dict(
    group_size=4,
    model=dict(config=dict(model_type='llama', vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                           num_attention_heads=4, max_position_embeddings=64)),
    learn=dict(batch_size=3, learning_rate=1e-3, epoch_per_collect=2, beta=0.1, micro_batch_tokens=60),
    collect=dict(n_sample=6),
)
STEPS = dict(group_size=4, learn=dict(learning_rate=1e-3), collect=dict(n_sample=3))
