"""The faults that ``tools/faults.py`` injects: what is broken, how, and what must come of it."""
import os
import re
import shutil
import signal
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from safetensors.torch import load_file, save_file

from ding_grpo.model import CausalLM
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer

from tools.fault_engine import ENGINES, WEIGHTS, with_engine
from tools.fault_rewards import PORT, PROGRAMS, hostile, judged


def files_in(folder: str) -> List[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


class Fault(NamedTuple):
    """What is broken, how, and what must come of it."""
    name: str
    happened: str  # regular expression of the last lines
    changes: Dict[str, Any] = {}
    prepare: Callable[[str], None] = lambda folder: None
    code: int = 1
    limit: Optional[int] = None
    signal: Optional[int] = None
    first: int = 0  # updates of a run before, which this one resumes
    updates: int = 6


def _on_newest(do: Callable[[str], None], how_many: int = 1) -> Callable[[str], None]:

    def prepare(folder: str) -> None:
        ckpt = os.path.join(folder, 'run', 'ckpt')
        names = sorted(files_in(ckpt), key=lambda n: int((re.findall(r'\d+', n) or [-1])[0]), reverse=True)
        for name in names[:how_many]:
            do(os.path.join(ckpt, name))

    return prepare


def _cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _flip(path: str) -> None:
    with open(path, 'r+b') as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 16]))


def small_disk(folder: str, name: str = 'run', size: str = '30m') -> None:
    """Room for two checkpoints; only the superuser may make such a disk."""
    place = os.path.join(folder, name)
    os.mkdir(place)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'none', place], check=True)


def no_room_for_weights(folder: str) -> None:
    small_disk(folder, WEIGHTS, '64k')


DISKS = {small_disk: 'run', no_room_for_weights: WEIGHTS}


def _reseed(path: str) -> None:
    state = torch.load(path, weights_only=True)
    state['run']['seed'] = 7
    torch.save(state, path)


class _Code:

    def __reduce__(self) -> Tuple:
        return os.mkdir, ('executed', )


def _code(path: str) -> None:
    torch.save(dict(model=_Code()), path)


def _model(spoil: Callable[[str], None] = lambda folder: None) -> Callable[[str], None]:
    """A model folder, spoiled."""

    def prepare(folder: str) -> None:
        torch.manual_seed(0)
        path = os.path.join(folder, 'model')
        CausalLM(
            config=dict(
                model_type='llama',
                vocab_size=32,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2
            )
        ).save_pretrained(path, build_word_tokenizer(ThinkAnswerTask.words))
        spoil(path)

    return prepare


def _nan_weight(path: str) -> None:
    file = os.path.join(path, 'model.safetensors')
    weights = load_file(file)
    weights['model.norm.weight'][3] = float('nan')
    save_file(weights, file, dict(format='pt'))


def _link_out(path: str) -> None:
    file = os.path.join(path, 'model.safetensors')
    shutil.move(file, os.path.join(path, '..', 'elsewhere.safetensors'))
    os.symlink(os.path.join('..', 'elsewhere.safetensors'), file)


def _file(content: Any, name: str = 'a.jsonl') -> Callable[[str], None]:
    """A file beside the config, or the config itself."""

    def prepare(folder: str) -> None:
        with open(os.path.join(folder, name), 'wb') as f:
            f.write(content if isinstance(content, bytes) else content.encode())

    return prepare


RESUME = dict(policy=dict(learn=dict(resume_training=True)))
FILE = dict(
    env=dict(
        task=dict(type='file', path='a.jsonl'),
        tokenizer=dict(chars='abcdefghij '),
        evaluator_env_num=1,
        n_evaluator_episode=1
    )
)


def _rewarded(seconds: float = 60., **reward: Any) -> Dict[str, Any]:
    """``FILE`` with a reward that is a dict."""
    env = FILE['env']
    return dict(env=dict(env, task=dict(env['task'], reward=reward, retries=1, seconds=seconds)))


JUDGE = dict(type='judge', url='http://127.0.0.1:9/v1', model='judge', prompt='Rate {completion}')
OF_PROGRAM = dict(env=dict(FILE['env'], task=dict(FILE['env']['task'], reward='hostile.py:score')))
MODEL = dict(env=dict(tokenizer=dict(pretrained='model')), policy=dict(model=dict(pretrained='model')))
GOOD = '{"question": "a", "answer": "b"}\n'
SCORER = '''
def problems():
    return [dict(prompt='2 + 2 =', answer='4')]


def score(problem, completion):
    return float('nan')
'''
LIMIT = 200_000  # bytes; a checkpoint here has 12 MB

FAULTS = [
    Fault('SIGTERM', 'SIGTERM: saving after update', code=143, signal=signal.SIGTERM, updates=10 ** 6),
    Fault('Ctrl-C', 'SIGINT: saving after update', code=130, signal=signal.SIGINT, updates=10 ** 6),
    Fault(
        'no room for a checkpoint',
        r'could not be written \(.*\); the last good one is run/ckpt/iteration_4',
        RESUME,
        limit=LIMIT,
        first=4
    ),
    Fault(
        'a full disk',
        r'could not be written \(No space left on device\); the last good one is run/ckpt/iteration_2',
        RESUME,
        small_disk,
        updates=50
    ),
    Fault(
        'newest checkpoint cut off',
        'iteration_4.pth.tar is damaged.*resuming from run/ckpt/iteration_2',
        RESUME,
        _on_newest(_cut),
        code=0,
        first=4
    ),
    Fault(
        'one bit of it flipped',
        'iteration_4.pth.tar is damaged.*checksum.*resuming from run/ckpt/iteration_2',
        RESUME,
        _on_newest(_flip),
        code=0,
        first=4
    ),
    Fault('all checkpoints damaged', 'damaged.* no good earlier checkpoint', RESUME, _on_newest(_cut, 9), first=4),
    Fault(
        'code in place of checkpoints',
        'contains more than tensors .* no good earlier checkpoint',
        RESUME,
        _on_newest(_code, 9),
        first=4
    ),
    Fault('resumed with another seed', 'seed = 0: the run of .* has seed 7', RESUME, _on_newest(_reseed, 9), first=2),
    Fault(
        'weights that are not finite', 'parameter .*norm.weight: 1 of 32 numbers are NaN or infinite', MODEL,
        _model(_nan_weight)
    ),
    Fault(
        'logits that overflow', 'the logits at sampling are NaN or infinite',
        dict(policy=dict(collect=dict(temperature=1e-39)))
    ),
    Fault(
        'a learning rate of 1e30', r'must be a number in \(0, 1000\]',
        dict(policy=dict(learn=dict(learning_rate=1e30)))
    ),
    Fault(
        'ratios that run away, with max_ratio',
        'models: run/model',
        dict(policy=dict(learn=dict(max_ratio=1.2, epoch_per_collect=50, learning_rate=1e-2))),
        code=0
    ),
    Fault(
        'a scorer that gives NaN', 'right = nan|= nan, must be a finite number',
        dict(
            env=dict(
                task=dict(type='file', path='my_task.py'),
                tokenizer=dict(chars='0123456789+= '),
                evaluator_env_num=1,
                n_evaluator_episode=1
            )
        ), _file(SCORER, 'my_task.py')
    ),
    Fault(
        'a judge that is gone', 'the judge at http://127.0.0.1:9/v1 cannot be reached', _rewarded(**JUDGE), _file(GOOD)
    ),
    Fault(
        'a judge that is slow', 'took longer than 1 s, seconds of the task',
        _rewarded(1., **dict(JUDGE, url=f'http://127.0.0.1:{PORT}/slow/v1')), judged
    ),
    Fault(
        'a judge that limits its rate once',
        'scorers that wait: .* scores, 1 retries, 0 failures',
        _rewarded(**dict(JUDGE, url=f'http://127.0.0.1:{PORT}/limited/v1')),
        judged,
        code=0
    ),
    Fault(
        'a judge that asks to wait an hour', 'answers with status 429.*slow down',
        _rewarded(**dict(JUDGE, url=f'http://127.0.0.1:{PORT}/closed/v1')), judged
    ),
    Fault(
        'a judge that gives no verdict', 'its reply does not end with VERDICT-',
        _rewarded(**dict(JUDGE, url=f'http://127.0.0.1:{PORT}/wrong/v1')), judged
    ),
    *(
        Fault(f'a program that {harm}', 'the program scores 0.0', OF_PROGRAM, hostile(program), code=0)
        for harm, program in PROGRAMS.items()
    ),
    *(
        Fault(f'an engine that {fault}', happened, with_engine(fault), code=code)
        for fault, (happened, code) in ENGINES.items()
    ),
    Fault(
        'a folder that has no room for the weights of an engine', 'weights cannot be written there \\(.*No space left',
        with_engine('', folder=WEIGHTS), no_room_for_weights
    ),
    Fault(
        'an API key in the config', 'env.task.reward.key: must be the name of', _rewarded(**JUDGE, key='sk-1'),
        _file(GOOD)
    ),
    Fault(
        'a rubric with a column that is missing', 'is not a column. Allowed: completion, prompt',
        _rewarded(**{
            **JUDGE, 'prompt': '{completion} {solution}'
        }), _file(GOOD)
    ),
    Fault(
        'tests of programs in another form', 'must be texts of assert statements, or pairs of input and output',
        _rewarded(type='code', tests='tests', program_in='whole'),
        _file('{"question": "a", "answer": "b", "tests": [1, 2]}')
    ),
    Fault('a broken line', "a.jsonl': line 2 is not valid JSON", FILE, _file(GOOD + '{"question"')),
    Fault('another encoding', 'save the file as UTF-8', FILE, _file(GOOD.encode('utf-16'))),
    Fault('a missing field', 'line 1 has no column for the answer', FILE, _file('{"question": "a"}')),
    Fault(
        'a million characters', 'the longest has 1000000', FILE,
        _file('{"question": "%s", "answer": "b"}' % ('a' * 10 ** 6))
    ),
    Fault(
        'one question with two answers',
        'repeat a question with a different answer',
        FILE,
        _file(GOOD + '{"question": "a", "answer": "c"}\n'),
        code=0
    ),
    Fault('an empty file', 'the task has no problem', FILE, _file('')),
    Fault('<eos> in a prompt', 'it has no token for', FILE, _file('{"question": "a<eos>", "answer": "b"}')),
    Fault(
        'a model folder without tokenizer', 'contains no tokenizer', MODEL,
        _model(lambda path: [os.remove(os.path.join(path, n)) for n in files_in(path) if 'token' in n])
    ),
    Fault(
        'without weights', 'model.pretrained = .*safetensors', MODEL,
        _model(lambda path: os.remove(os.path.join(path, 'model.safetensors')))
    ),
    Fault('with a link out of it', 'is a link to .*, outside the folder', MODEL, _model(_link_out)),
    Fault('a file without main_config', 'must define main_config', prepare=_file('x = 1\n', 'c.py')),
    Fault('a config that does not compile', 'SyntaxError', prepare=_file('main_config = (\n', 'c.py')),
]
