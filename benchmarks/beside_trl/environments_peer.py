"""TRL's side of ``environments.py``: ``python -m benchmarks.beside_trl.environments_peer FOLDER``."""
import json
import os
import re
import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from benchmarks.beside_trl.environment import MOST, REWARDS, SEEN, Shop, rows
from benchmarks.beside_trl.protocol import PEER, own_folder, versions

START = '<|im_start|>assistant\n'


class Told(GRPOTrainer):
    """A trainer whose model says what a table has for the case and the turn of a prompt."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        found = []
        for ids in prompt_ids:
            text = self.processing_class.decode(ids)
            case = int(re.search(r'Case (\d+)', text)[1])
            said = self.said[case][text.count(START) - 1]
            found.append(self.processing_class.encode(said + '<|im_end|>', add_special_tokens=False))
        return found, None

    def _calculate_rewards(self, inputs, *args):
        self.found = super()._calculate_rewards(inputs, *args)
        return self.found


def main(folder: str) -> None:
    """Write ``peer.json``: the rewards of each case, and the messages that the functions saw."""
    with open(os.path.join(folder, 'cases.json')) as f:
        said = list(json.load(f).values())
    model, given = os.path.join(folder, 'model'), [row for row in rows(len(said)) for _ in range(2)]
    trainer = Told(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=REWARDS,
        train_dataset=Dataset.from_list(rows(len(said))),
        environment_factory=Shop,
        args=GRPOConfig(
            **PEER,
            output_dir=own_folder(),
            per_device_train_batch_size=len(given),
            num_generations=2,
            max_completion_length=2000,
            max_tool_calling_iterations=MOST,
            max_steps=1,
        ),
    )
    trainer.said = said
    trainer.model.train()
    trainer._generate_and_score_completions(given)
    rewards = [dict(zip(trainer.reward_func_names, row)) for row in trainer.found.tolist()]
    if any(str(a) != str(b) for a, b in zip(rewards[::2], rewards[1::2])):
        raise AssertionError('two rows with the same completion have other rewards')
    found = [
        dict(SEEN[i], rewards={name: None if value != value else value
                               for name, value in rewards[2 * i].items()}) for i in range(len(rewards) // 2)
    ]
    with open(os.path.join(folder, 'peer.json'), 'w') as f:
        json.dump(dict(found=found, versions=versions()), f)


if __name__ == '__main__':
    main(sys.argv[1])
