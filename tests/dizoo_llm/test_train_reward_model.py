"""Reward models from pairs of completions."""
import os

import pytest
import torch
from click.testing import CliRunner
from transformers import LlamaForCausalLM, LlamaForSequenceClassification

from ding_common import ConfigError, read_json_lines
from dizoo_llm.models.reward_model import RewardModel
from dizoo_llm.tasks import Problem
from dizoo_llm.train_reward_model import main, read_pairs, train
from tests.dizoo_llm.helper import write
from tests.dizoo_llm.models.test_reward_model import save_model
from tests.processes import ROOT

PAIRS = os.path.join(ROOT, 'benchmarks', 'kl', 'think_answer_pairs.py')
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
MODEL = dict(config=dict(model_type='llama', max_position_embeddings=64, **SIZES))


def config(folder, model=MODEL, **changes):
    options = dict(pairs=PAIRS, number=600, held_out=100, epochs=4, learning_rate=3e-3, eval_freq=15)
    return dict(
        exp_name=str(folder), env=dict(task=dict(type='think_answer')), model=model, train=dict(options, **changes)
    )


class TestPairs:

    def test_of_a_file(self, tmp_path):
        rows = [dict(prompt='1 2', chosen=str(i), rejected='0', source='x') for i in range(3)]
        path = write(tmp_path / 'pairs.jsonl', rows)
        assert [pair.chosen for pair in read_pairs(path, 3)] == ['0', '1', '2']
        with pytest.raises(ConfigError, match='it has 3 lines; train.number and train.held_out need 4'):
            read_pairs(path, 4)

    @pytest.mark.parametrize('line', ['{"prompt": "1", "chosen": "2"}', '[1, 2, 3]', 'x', '{"prompt": []}'])
    def test_a_line_that_is_none(self, tmp_path, line):
        (tmp_path / 'pairs.jsonl').write_text(line + '\n')
        with pytest.raises(ConfigError, match='pair 0'):
            read_pairs(str(tmp_path / 'pairs.jsonl'), 1)


@pytest.mark.envtest
class TestTraining:

    def test_learns_and_is_a_reward_model(self, tmp_path):
        folder, accuracy = train(config(tmp_path / 'run'), 0)
        evaluations = read_json_lines(str(tmp_path / 'run' / 'evaluations.jsonl'))
        assert evaluations[0]['step'] == 0 and evaluations[-1]['held_out_accuracy'] == accuracy > 0.7
        held_out, model = read_pairs(PAIRS, 700)[600:], RewardModel(dict(pretrained=folder))
        asked = [Problem(pair.prompt) for pair in held_out]
        better, worse = (model.scores(asked, [getattr(p, name) for p in held_out]) for name in ('chosen', 'rejected'))
        assert sum(a > b for a, b in zip(better, worse)) / 100 == accuracy
        short = [train(config(tmp_path / name, number=32, epochs=1), 0)[0] for name in ('one', 'other')]
        found = [RewardModel(dict(pretrained=path)).scores(asked, ['3'] * 100) for path in short]
        assert found[0] == found[1] != model.scores(asked, ['3'] * 100)

    def test_a_pretrained_model_gets_a_head(self, tmp_path):
        folder, _ = save_model(tmp_path / 'base', kind=LlamaForCausalLM, max_position_embeddings=64)
        options = config(tmp_path / 'run', dict(pretrained=folder), number=32, held_out=4, epochs=1, learning_rate=1e-9)
        options['env']['tokenizer'] = dict(pretrained=folder)
        path, _ = train(options, 0)
        base, trained = (
            kind.from_pretrained(each).model.embed_tokens.weight
            for kind, each in ((LlamaForCausalLM, folder), (LlamaForSequenceClassification, path))
        )
        assert torch.allclose(trained, base, atol=1e-6)

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(pairs=''), "train.pairs = ''"), (dict(pairs='nowhere.jsonl'), 'train.pairs'),
            (dict(pairs=__file__), 'must define a function pair'), (dict(epochs=0), 'train.epochs = 0'),
            (dict(model={}), 'set exactly one of them')
        ],
        ids=str
    )
    def test_one_line_for_a_wrong_config(self, tmp_path, changes, message):
        path = tmp_path / 'config.py'
        path.write_text(f"main_config = {config(tmp_path / 'run', **changes)!r}")
        result = CliRunner().invoke(main, ['-c', str(path)])
        assert result.exit_code == 1 and message in result.output and len(result.output.splitlines()) == 1
