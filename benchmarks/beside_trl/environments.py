"""
One environment class with the same completions under TRL's tool loop and under this project's: the messages that the
reward functions see, and what they return.
"""
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.beside_trl.environment import KNOWN, MOST, REWARDS, SEEN, Shop, cases, in_json, in_tags, rows
from benchmarks.beside_trl.turns import build_tokenizer
from benchmarks.shared.paths import ROOT
from dizoo_llm.agents import AgentEnv
from dizoo_llm.tasks import create_task


def make_work(folder: str, peer_python: str, template: str) -> Dict[str, List[str]]:
    """
    Overview:
        Write a tiny model, which says nothing of its own, a tokenizer with a chat template of TRL, and the cases.
    """
    find = 'import importlib.util as u; print(u.find_spec("trl").submodule_search_locations[0])'
    trl = subprocess.run([peer_python, '-c', find], capture_output=True, text=True, check=True).stdout.strip()
    with open(os.path.join(trl, 'chat_templates', f'{template}.jinja')) as f:
        text = f.read()
    found = cases(in_tags if '<function=' in text else in_json)
    tokenizer = build_tokenizer([text, *map(str, found.values())], text)
    config = dict(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    model = LlamaForCausalLM(LlamaConfig(**config, num_attention_heads=1, max_position_embeddings=10000))
    for part in (model, tokenizer):
        part.save_pretrained(os.path.join(folder, 'model'))
    with open(os.path.join(folder, 'cases.json'), 'w') as f:
        json.dump(found, f)
    return found


def ours(folder: str, said: Dict[str, List[str]]) -> List[Dict[str, Any]]:
    """
    Overview:
        What the reward functions saw and returned here, for each case.
    """
    task = create_task(
        dict(
            type='environment',
            factory=Shop,
            problems=rows(len(said)),
            reward=REWARDS,
            max_tool_calling_iterations=MOST
        )
    )
    limits = dict(max_prompt_length=5000, max_new_tokens=500, max_tokens=2000, max_turns=20)
    env = AgentEnv(task, tokenizer=dict(pretrained=os.path.join(folder, 'model')), **limits)
    found = []
    for case, (name, texts) in enumerate(said.items()):
        env.reset(options=dict(index=case))
        for text in texts:
            ids = env.tokenizer.encode(text + '<|im_end|>', add_special_tokens=False)
            *_, terminated, truncated, info = env.step(ids)
            if terminated or truncated:
                break
        if info['failed'] is not None:
            raise click.ClickException(f'{name}: {info["failed"]}')
        found.append(dict(SEEN[case], rewards=info['reward_parts']))
    env.close()
    return found


def same_rewards(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    """
    Overview:
        Whether all parts are equal in float32.
    """
    tensors = [
        {name: None if value is None else torch.tensor(value)
         for name, value in each['rewards'].items()} for each in (one, other)
    ]
    return str(tensors[0]) == str(tensors[1])


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--template', default='qwen2_5', show_default=True, help='A chat template of TRL.')
def main(peer_python: str, template: str) -> None:
    """Compare all cases, and show where they differ."""
    with tempfile.TemporaryDirectory() as folder:
        said = make_work(folder, peer_python, template)
        command = [peer_python, '-m', 'benchmarks.beside_trl.environments_peer', folder]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        with open(os.path.join(folder, 'peer.json')) as f:
            peer = json.load(f)
        own = ours(folder, said)
    differ = []
    for name, here, there in zip(said, own, peer['found']):
        equal = all(here[key] == there[key] for key in ('prompt', 'completion')) and same_rewards(here, there)
        if not equal:
            differ.append(name)
            told = KNOWN.get(name) or f'NOT KNOWN\n  here:  {json.dumps(here)}\n  there: {json.dumps(there)}'
            click.echo(f'{name}: {told}')
    click.echo(f"{template}: {len(said) - len(differ)} of {len(said)} cases are equal; {peer['versions']}")
    if set(differ) - set(KNOWN):
        raise click.ClickException('the sides differ where it is not known')


if __name__ == '__main__':
    main()
