"""The tasks of ``four_ways`` with the settings that each way tries, and the text of its page."""
from typing import Any, Dict, NamedTuple

from ding.utils import deep_merge_dicts

from benchmarks.shared.runs import CONSTANT


class Task(NamedTuple):
    """
    Overview:
        A task, and the keys of ``policy`` that each way tries, by label.
    """
    config: str
    bar: float
    most: int  # rows
    eval_freq: int
    env: Dict[str, Any]
    ways: Dict[str, Dict[str, Dict[str, Any]]]


def merged(*parts: Dict[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for part in parts:
        found = deep_merge_dicts(found, part)
    return found


def rows(number: int, rate: float) -> Dict[str, Any]:
    """Groups of 16, and two optimizer steps in an update."""
    groups = number // 16
    learn = dict(batch_groups=max(groups // 2, 1), learning_rate=rate, lr_scheduler=CONSTANT)
    return dict(group_size=16, learn=learn, collect=dict(groups=groups))


def critic(gae_lambda: float) -> Dict[str, Any]:
    return dict(learn=dict(advantage='gae', adv_method='batch', critic=dict(gae_lambda=gae_lambda)))


def tree(branches: list, at: str = 'tokens', **more: Any) -> Dict[str, Any]:
    learn = dict(advantage='tree', adv_method='rloo')
    return dict(learn=learn, collect=dict(tree=dict(branches=branches, at=at, **more)))


def smollm2(*parts: Dict[str, Any]) -> Dict[str, Any]:
    return merged(dict(group_size=16, learn=dict(batch_groups=8), collect=dict(groups=16)), *parts)


def told(weight: float, **learn: Any) -> Dict[str, Any]:
    """The answer as a further turn: of the forms that were tried, the one with which the model is right most often."""
    teacher = dict(self='live', context='reference', place='turn', solution='No. It is {solution}.', closing='')
    return dict(teacher=teacher, learn=dict(distillation=dict(weight=weight), drop_equal_groups=False, **learn))


def taught(context: str, weight: float) -> Dict[str, Any]:
    teacher = dict(
        self='start', context=context, place='before', solution='{solution} ', feedback='{feedback} ', closing=''
    )
    return dict(teacher=teacher, learn=dict(distillation=dict(weight=weight)))


def on(start: str, tries: Dict[str, Any]) -> Dict[str, Any]:
    """Tries that begin with the model of a warm start."""
    model = dict(model=dict(pretrained=f'runs/{start}/model'))
    return {label: merged(settings, model) for label, settings in tries.items()}


GRPO, CRITIC, TREE, SELF, TOLD = 'GRPO', 'a critic', 'a tree', 'self-distillation', 'self-distillation, reference'
ALONE = dict(learn=dict(advantage='none', adv_method=None, entropy=dict(weight=0.0)))
NARROW, WIDE = rows(64, 1e-4), rows(256, 1e-4)
GUESS, FAST = rows(128, 5e-4), rows(128, 1e-3)
LARGE, LARGE_FAST = rows(512, 1e-4), rows(512, 2e-4)
TASKS = dict(
    think_answer=Task(
        'think_answer_grpo', 1.0, 60 * 256, 1, {}, {
            way: on('think_answer_reader_sft', tries)
            for way, tries in {
                GRPO: {
                    '64 rows': NARROW,
                    '256 rows': WIDE,
                    '256 rows, rate 2e-4': rows(256, 2e-4),
                    '64 rows, rate 2e-4': rows(64, 2e-4)
                },
                CRITIC: {
                    'lambda 0.95, 64 rows': merged(NARROW, critic(0.95)),
                    'lambda 0.95, 256 rows': merged(WIDE, critic(0.95)),
                    'lambda 1, 256 rows': merged(WIDE, critic(1.0)),
                    'lambda 1, 64 rows': merged(NARROW, critic(1.0))
                },
                TREE: {
                    '[2] at 2, 256 rows': merged(WIDE, tree([2], tokens=[2])),
                    '[2, 2] at 1 and 3, 256 rows': merged(WIDE, tree([2, 2], tokens=[1, 3])),
                    '[2] at 2, 64 rows': merged(NARROW, tree([2], tokens=[2])),
                    '[2, 2] at 1 and 3, 64 rows': merged(NARROW, tree([2, 2], tokens=[1, 3]))
                },
                SELF: {
                    'sibling, 64 rows': merged(NARROW, taught('sibling', 1.0)),
                    'sibling, 256 rows': merged(WIDE, taught('sibling', 1.0)),
                    'sibling, 64 rows, weight 0.3': merged(NARROW, taught('sibling', 0.3)),
                    'sibling, 64 rows, rate 2e-4': merged(rows(64, 2e-4), taught('sibling', 1.0))
                },
                TOLD: {
                    '64 rows': merged(NARROW, taught('reference', 1.0), ALONE),
                    '256 rows': merged(WIDE, taught('reference', 1.0), ALONE),
                    '256 rows, rate 2e-4': merged(rows(256, 2e-4), taught('reference', 1.0), ALONE),
                    '64 rows, rate 2e-4': merged(rows(64, 2e-4), taught('reference', 1.0), ALONE)
                },
            }.items()
        }
    ),
    guess=Task(
        'guess_grpo', 6 / 7, 300 * 128, 2, {}, {
            GRPO: {
                'by step': GUESS,
                'outcome': merged(GUESS, dict(learn=dict(advantage='outcome'))),
                'by step, rate 1e-3': merged(GUESS, FAST)
            },
            CRITIC: {
                'lambda 0.95': merged(GUESS, critic(0.95)),
                'lambda 1': merged(GUESS, critic(1.0)),
                'lambda 0.95, rate 1e-3': merged(FAST, critic(0.95))
            },
            TREE: {
                '[2] after a turn': merged(GUESS, tree([2], 'turns')),
                '[2] after a turn, rate 1e-3': merged(FAST, tree([2], 'turns')),
                '[2, 2], rate 1e-3': merged(FAST, tree([2, 2], 'turns'))
            },
        }
    ),
    rearrange=Task(
        'rearrange_grpo', 0.9, 60 * 512, 2, dict(n_evaluator_episode=64, evaluator_env_num=64), {
            way: on('rearrange_sft', tries)
            for way, tries in {
                GRPO: {
                    'rate 2e-4': LARGE_FAST,
                    'rate 1e-4': LARGE,
                    '256 rows': rows(256, 1e-4)
                },
                CRITIC: {
                    'rate 2e-4': merged(LARGE_FAST, critic(1.0)),
                    'rate 1e-4': merged(LARGE, critic(1.0)),
                    'lambda 0.95, rate 1e-4': merged(LARGE, critic(0.95))
                },
                TREE: {
                    '[2] at 10': merged(LARGE, tree([2], tokens=[10])),
                    '[2] at 20': merged(LARGE, tree([2], tokens=[20])),
                    '[4] at 25': merged(LARGE, tree([4], tokens=[25]))
                },
                SELF: {
                    'feedback, 256 rows': merged(rows(256, 2e-4), taught('feedback', 1.0)),
                    'feedback, 64 rows': merged(rows(64, 2e-4), taught('feedback', 1.0)),
                    'feedback, 64 rows, rate 1e-4': merged(rows(64, 1e-4), taught('feedback', 1.0))
                },
            }.items()
        }
    ),
    smollm2=Task(
        'smollm2_grpo', 0.6, 40 * 512, 4, {}, {
            GRPO: {
                '256 rows': smollm2()
            },
            CRITIC: {
                'lambda 1': smollm2(critic(1.0), dict(learn=dict(drop_equal_groups=False)))
            },
            TREE: {
                '[2] at 1': smollm2(tree([2], tokens=[1]))
            },
            TOLD: {
                'beside the reward': smollm2(told(0.5))
            },
        }
    ),
)
LONGEST = dict(think_answer=8, guess=6, rearrange=31, smollm2=4)  # tokens of a row, at most
TEXT = '''# Four ways to learn from rewards

Generated by `make bench NAME=four_ways`. [More than one number](../tutorials/more_than_one_number.md) describes them:
GRPO compares the rows of a group; a critic (`advantage='gae'`) values each token; a tree (`policy.collect.tree`)
samples beginnings once and compares what branches there; in self-distillation the policy that reads more is its own
teacher, beside the reward, or, with the reference solution of think_answer, in place of it.

- All ways of a task have the same start, groups of 16 rows, and the same largest number of tokens.
- Every way has the same number of tries, on the seeds 100 and 101. The one with the fewest tokens there, where a run
  that is not at the bar counts as all of them, is run on the seeds 0 to {last}. The last column has the tries.
  SmolLM2 has none, and two seeds.
- Tokens are those sampled until the first evaluation at the bar; what rows of a tree share counts once. Medians and
  ranges of tokens and seconds are those of the seeds at the bar.
- "Of GRPO's" compares medians over all seeds, in which one that is not at the bar has needed more than any other. It is
  empty if most seeds are not at the bar, and a bound if most of GRPO's are not.
- Seconds are those of the processor, without evaluations, and rough, because the machine had much other work:
  {machine}.
- `[2, 2] at 1 and 3` divides each row in two after 1 and after 3 of its tokens.

## think_answer

All four questions, greedy, within {think_answer_most} tokens, from the model of `think_answer_reader_sft`, which
answers what it reads. Right completions of the group (`sibling`) say no more than the reward; the reference solution
names the answer.

{think_answer}

## guess

Six of seven numbers, greedy, within {guess_most} tokens, from random weights. A tree divides at the ends of turns.
Self-distillation needs tasks of one turn.

{guess}

## rearrange

90 % of 64 held-out chains, greedy, within {rearrange_most} tokens, from the model of `rearrange_sft`, which does each
of six steps right with a probability of 0.45, and all of them if it reads feedback. Self-distillation reads which steps
were wrong.

{rearrange}

## SmolLM2's sums

60 % of 128 held-out sums and differences, greedy, within {smollm2_most} tokens, by `config/smollm2_grpo_config.py` with
256 rows an update. Self-distillation reads the answer as a further turn, "No. It is 7.". With it, the pretrained model
gives the right answer a mean probability of 0.19, without it 0.05. That is too poor a reader: on both seeds accuracy
falls from 12 % to 2 % in four updates, since the teacher, `self='live'`, falls with the policy, and never exceeds 12 %
again.

{smollm2}
'''
