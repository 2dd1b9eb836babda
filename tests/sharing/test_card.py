"""The model card of a run, what repeats the run, and its upload to a stand-in of the hub."""
import json
import os
import re
import shutil
from hashlib import sha256

import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy
from huggingface_hub import ModelCard

from ding_common import ConfigError, read_config_file
from ding_grpo import GRPO
from ding_grpo.sharing.hub import _name_base
from ding_grpo.sharing.portable import _Portable
from tests.sharing.hub import local_hub
from tests.processes import Process, python, run_ding
from tests.runs import train, weights
from tests.same import same
from tests.shipped import small

HOSTILE = 'sums|<b>![x](y).jsonl'
SCRIPT = """
from ding_common import ConfigError
from ding_grpo import GRPO

FENCE = '```</pre>'


def right(completion, answer):
    return float(completion == answer) + 0.0 * len(FENCE)


if __name__ == '__main__':
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    tokenizer = {'env.tokenizer': dict(chars='0123456789+=')}
    keys = dict(max_new_tokens=2, group_size=4, groups=2, eval_size=5, learning_rate=1e-2, exp_name='runs/own')
    model = dict(config=dict(model_type='llama', max_position_embeddings=32, **shape))
    run = GRPO(model, data=DATA, reward=right, **keys, **tokenizer)
    run.train(updates=2)
    run.save('saved')
    run.push_to_hub('alice/model', token='right')
    for token, name in (('wrong', 'alice/other'), ('right', 'no name')):
        try:
            run.push_to_hub(name, token=token)
        except ConfigError as error:
            print('REFUSED', error.message)
"""


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    """The folder of a user, with a run of a script there that has saved and uploaded its model; and what arrived."""
    home = tmp_path_factory.mktemp('home') / 'alice_secret'
    home.mkdir()
    data = home / HOSTILE
    data.write_text(''.join(f'{{"question": "{a}+{b}=", "answer": "{a + b}"}}\n' for a in range(5) for b in range(5)))
    (home / 'script.py').write_text(SCRIPT.replace('DATA', repr(str(data))))
    with local_hub() as hub:
        variables = dict(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE='0', HF_HOME=str(home / 'hf'), OMP_NUM_THREADS='1')
        run = python('script.py', folder=home, **variables)
        assert run.returncode == 0 and 'Gym has been unmaintained' not in run.stdout + run.stderr, run.stderr
    return home, hub, run.stdout


@pytest.mark.envtest
class TestScript:

    def test_what_arrives_at_the_hub_is_the_saved_folder(self, home):
        folder, hub, out = home
        saved = {name: (folder / 'saved' / name).read_bytes() for name in os.listdir(folder / 'saved')}
        assert hub.files == {'alice/model': saved} and hub.private == {'alice/model': True}
        assert {'README.md', 'config.py', 'rewards.py', 'curve.png', 'model.safetensors'} <= set(saved)

    def test_what_the_hub_refuses_ends_in_one_line(self, home):
        lines = [line for line in home[2].splitlines() if 'REFUSED' in line]
        assert len(lines) == 2 and home[2].endswith(lines[1] + '\n')
        assert lines[0].startswith("REFUSED push_to_hub('alice/other'): ") and '401' in lines[0]
        assert lines[1].startswith("REFUSED push_to_hub('no name'): HFValidationError")

    def test_no_file_names_the_folders_of_the_user(self, home):
        for folder in ('saved', 'runs/own/model/last', 'runs/own/model/best'):
            for name in os.listdir(home[0] / folder):
                assert b'alice_secret' not in (home[0] / folder / name).read_bytes(), name

    def test_the_card(self, home):
        card = ModelCard.load(home[0] / 'saved' / 'README.md')
        result, = card.data.eval_results
        assert (card.data.library_name, card.data.base_model, result.metric_type) == ('transformers', None, 'accuracy')
        rows = dict(re.findall(r'^\| (.*?) \| (.*) \|$', card.text, re.M))
        assert rows['path'] == r'sums\|\<b>![x]\(y).jsonl' and rows['problems in training'] == '20'
        assert rows['episodes of an evaluation, held out'] == '5' and rows['env.task.reward'] == 'rewards.py:right'
        expected = dict(group_size='4', updates='2', seed='0', torch=torch.__version__.partition('+')[0], threads='1')
        assert {name: rows[name] for name in expected} == expected and rows['learn.learning_rate'] == '0.01'
        digest = sha256((home[0] / HOSTILE).read_bytes()).hexdigest()
        assert rows[rows['path']].endswith(f'SHA-256 {digest}') and rows['rewards.py'] == 'in this folder'
        assert rows['0'].startswith('0 | 0.000 to 0.434 |') and result.metric_value == 0  # Wilson: 0 of 5
        source = (home[0] / 'saved' / 'rewards.py').read_text().rstrip()
        assert f'\n````python\n{source}\n````\n' in card.text and '```' in source
        assert '![Reward and return over updates](curve.png)' in card.text

    def test_its_config_gives_the_same_weights_elsewhere(self, home, tmp_path):
        for name in ('config.py', 'rewards.py'):
            shutil.copy(home[0] / 'saved' / name, tmp_path)
        shutil.copy(home[0] / HOSTILE, tmp_path)
        command, = re.findall(r'^    ding (.*)$', ModelCard.load(home[0] / 'saved' / 'README.md').text, re.M)
        code, out = Process(run_ding, command, tmp_path).end()
        assert code == 0, out
        again = (tmp_path / 'own' / 'model' / 'last' / 'model.safetensors').read_bytes()
        assert again == (home[0] / 'saved' / 'model.safetensors').read_bytes()


def repeated(folder, tmp_path, monkeypatch, pipeline=serial_pipeline_onpolicy):
    """The weights of a run by the config in a model folder."""
    again = tmp_path / 'again'
    again.mkdir()
    shutil.copy(os.path.join(folder, 'config.py'), again)
    monkeypatch.chdir(again)
    return weights(pipeline(read_config_file('config.py'), seed=0))


@pytest.mark.envtest
def test_a_run_of_a_config_leaves_what_repeats_it(own_folder, tmp_path, monkeypatch):
    """The number of updates was an argument of the run."""
    policy = train(small('think_answer_grpo_serial'), 4, name='runs/cli', pipeline=serial_pipeline)
    card = ModelCard.load('runs/cli/model/last/README.md')
    assert 'These are the weights after 4 updates.' in card.text and '| problems in training | 4 |' in card.text
    assert '| parts | answer, format, solved |' in card.text
    assert '\n    ding -m serial -c config.py -s 0\n' in card.text
    assert 'It has not been trained.' in ModelCard.load('runs/cli/model/best/README.md').text  # no return was higher
    same(repeated('runs/cli/model/last', tmp_path, monkeypatch, serial_pipeline), weights(policy))


@pytest.mark.envtest
def test_a_policy_of_an_environment(own_folder, tmp_path, monkeypatch):
    run = GRPO(env='CartPole-v1', n_evaluator_episode=2, stop_value=1e9, exp_name='run').train(updates=1)
    os.mkdir('saved')
    run.save('saved')
    card = ModelCard.load('saved/README.md')
    assert card.data.pipeline_tag == 'reinforcement-learning' and card.data.eval_results[0].metric_type == 'mean_return'
    same(torch.load('saved/model.pt'), run.policy.whole_model.state_dict())
    assert '| env_id | CartPole-v1 |' in card.text and '| parts | that of the environment |' in card.text
    same(repeated('saved', tmp_path, monkeypatch), weights(run.policy))
    with pytest.raises(ConfigError, match='model: is a model that a run saved. GRPO.load needs the folder of the run'):
        os.mkdir('model')
        open('model/config.json', 'w').close()
        GRPO.load('model')


def test_paths_are_replaced_by_their_last_part_and_texts_stay(tmp_path, own_folder):
    for name in ('a/train.jsonl', 'b/train.jsonl', 'rewards.py', 'models/base/config.json'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    portable = _Portable()
    found = portable(
        dict(
            path=['a/train.jsonl', f'{tmp_path}/b/train.jsonl', '/home/gone/x.jsonl'],
            reward={'one': f'{tmp_path}/rewards.py:right'},
            pretrained='models/base/',
            hub='Qwen/Qwen2.5-0.5B',
            module='package.module:right',
            system_prompt='/home/alice/said',
            face='/no_think',
            separator='/',
            number=1.5,
        )
    )
    assert found == dict(
        path=['train.jsonl', '_train.jsonl', 'x.jsonl'],
        reward={'one': 'rewards.py:right'},
        pretrained='base',
        hub='Qwen/Qwen2.5-0.5B',
        module='package.module:right',
        system_prompt='/home/alice/said',
        face='/no_think',
        separator='/',
        number=1.5,
    )
    assert set(portable.files) == {'train.jsonl', '_train.jsonl', 'x.jsonl', 'rewards.py', 'base'}


def test_adapters_name_their_base_model_and_not_its_folder(tmp_path):
    path = tmp_path / 'adapter_config.json'
    for base, name in ((str(tmp_path), tmp_path.name), ('owner/name', 'owner/name')):
        path.write_text(json.dumps(dict(base_model_name_or_path=base, r=4)))
        _name_base(str(path))
        assert json.loads(path.read_text()) == dict(base_model_name_or_path=name, r=4)
