"""Finished runs of tests of replays: those of shipped configs, and of two agents."""
import os

from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_common import read_json_lines, read_total_config
from ding_grpo.replay.changes import Changes, Fork
from ding_grpo.replay.command import main
from ding_grpo.replay.fork import forked
from ding_grpo.replay.session import replay
from ding_grpo.run.checkpoint import read_checkpoint
from tests.dizoo_llm.agents import programs
from tests.shipped import small

UPDATES = 4
# Sections ``policy`` without a run.
GROUPS = dict(type='grpo', collect={}, learn={})
EXTRA = dict(GROUPS, collect=dict(extra_rows=2))
CALLED = []  # problems for which the agents below have run, in this process


async def guesses(problem, client):
    """One reward for each answer. ``SHIFT`` is what the agent adds, as one with a clock would."""
    CALLED.append(problem['secret'])
    return [await programs.guesses(problem, client) / 4 + float(os.environ.get('SHIFT', 0))] * 4


async def weighs(problem, client):
    """Returns the log-probability of its answers, which are one text."""
    CALLED.append(problem['secret'])
    text, total = 'guess', 0.
    for _ in range(2):
        reply = await client.completions.create(model='policy', prompt=text, logprobs=0)
        total += sum(reply.choices[0].logprobs.token_logprobs)
        text += reply.choices[0].text + ' higher'
    return total


AGENTS = dict(agents='guesses', readers='weighs', recorded='guesses')  # episodes of several texts, and of one


def agents(name, policy):
    task = dict(type='agent', run=f'{__name__}:{AGENTS[name]}', problems=[dict(secret=i) for i in range(4)])
    words = dict(words=['guess', 'again', 'lower', 'higher', *map(str, range(4))])
    limits = dict(max_prompt_length=2, max_turns=4, max_tokens=20, max_new_tokens=3)
    main, create = small('think_answer_grpo', policy=policy)
    main.env.update(task=task, tokenizer=words, record_requests=name == 'recorded', **limits)
    return main, create


def shown(*words, code=0):
    """What the command prints."""
    found = CliRunner().invoke(main, list(map(str, words)))
    assert found.exit_code == code, found.output
    return found.output


class Run:
    """A finished run with a checkpoint and a record of each update."""

    def __init__(self, folder, name, pipeline=serial_pipeline_onpolicy, **changes):
        self.folder, self.name = folder / name, name
        configs = agents(name, **changes) if name in AGENTS else small(name, **changes)
        configs[0].policy.update(instruments=dict(tokens_every=1), run=dict(keep_ckpt=9))
        configs[0].policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=1))
        configs[0].exp_name = name
        pipeline(configs, seed=3, max_train_iter=UPDATES)
        self.cfg = read_total_config(name)
        self.records = read_json_lines(f'{name}/log/learner/tokens.jsonl')

    def state(self, update):
        return read_checkpoint(str(self.folder / 'ckpt' / f'iteration_{update}.pth.tar'))

    def replay(self, update, group, alone=False, records={}, **changes):
        return replay(self.cfg, self.state(update), group, Changes(**changes), alone, records)

    def fork(self, update, group, row, token):
        return forked(self.cfg, self.state(update), group, Fork(row, token))

    def recorded(self, update, group):
        return next(r for r in self.records if (r['train_iter'], r['group']) == (update, group))


CONFIGS = dict(
    think_answer_grpo=dict(learning_rate=1e-3), guess_grpo={}, cartpole_grpo={}, agents={}, readers={}
)  # and their policy.learn
