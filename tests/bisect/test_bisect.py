"""Each cause that makes two runs part is found by its stage."""
import copy
import json
import os
import shutil
from functools import reduce

import numpy as np
import pytest
import torch

from ding_grpo.bisect import causes
from ding_grpo.bisect.stages import tensors
from ding_grpo.instruments.digests import short
from ding_grpo.instruments.hashes import coded, decoded
from ding_grpo.model import CausalLM
from ding_grpo.run.checkpoint import read_checkpoint
from dizoo_llm.tasks import ThinkAnswerTask
from tests.processes import connected, run_code

from .helper import RUN, asked, bisect, configs, first_of, flip, lines, parts, rewrite, stopped_after, train

pytestmark = pytest.mark.envtest


def test_the_same_run_twice(run, own_folder):
    assert asked(bisect, run, train('b')) == (0, '4 updates of both runs are equal\n')


def test_another_seed_starts_from_other_weights(run, own_folder):
    assert first_of(parts(run, train('b', seed=4))).startswith('update 0, start: lm.')


def test_a_changed_key_is_named_and_its_stage(run, own_folder):
    """Twice the rate: the loss and the gradients of the first update are equal, and its weights are not."""
    main, create = configs()
    main.policy.learn.entropy.weight = 0.5
    status, out = asked(bisect, run, train('b', (main, create)))
    assert status == 1 and 'setting policy.learn.entropy.weight: 0.015 / 0.5\n' in out
    assert first_of(out).startswith('update 0, loss: total_loss: ') or first_of(out).startswith('update 0, gradients: ')
    assert 'under the settings of RUN_A: as RUN_A has recorded it' in out
    assert 'under the settings of RUN_B: as RUN_B has recorded it' in out
    assert 'policy.learn.entropy.weight is the only setting that differs' in out


def test_one_of_two_changed_keys_makes_the_difference(run, own_folder, monkeypatch):
    """The clip of a first step is not in its gradients, the weight of the entropy is. Keys beyond the first ones are
    named."""
    main, create = configs()
    main.policy.learn.entropy.weight, main.policy.learn.clip.ratio = 0.5, 0.1
    out = asked(bisect, run, train('b', (main, create)))[1]
    assert 'policy.learn.clip.ratio of RUN_B: does not make the difference alone' in out
    assert 'policy.learn.entropy.weight of RUN_B: makes the ' in out and 'not tried' not in out
    monkeypatch.setattr(causes, 'MOST_KEYS', 1)
    out = asked(bisect, run, 'b')[1]
    assert "RUN_A's with policy.learn.clip.ratio of RUN_B" in out and 'not tried: policy.learn.entropy.weight\n' in out


def test_a_seed_is_tried_as_a_setting(own_folder):
    """Both runs start from the same weights."""
    CausalLM(config=dict(configs()[0].policy.model.config, vocab_size=32)).lm.save_pretrained('model')
    for name, seed, weight in (('a', 3, 0.0), ('b', 4, 0.1)):
        main, create = configs()
        main.policy.model, main.policy.learn.entropy.weight = dict(pretrained='model'), weight
        train(name, (main, create), updates=1, seed=seed)
    out = asked(bisect, 'a', 'b')[1]
    assert first_of(out).startswith('update 0, drawn: ')
    assert "RUN_A's with seed of RUN_B: makes the difference in " in out
    assert 'policy.learn.entropy.weight of RUN_B: does not make the difference alone' in out


def test_a_divided_model_has_no_tensors_to_compare():
    whole = [('h', 1., 1.), ('i', 2., 1.)]
    assert not list(tensors('weights', [], whole, str)) and not list(tensors('weights', whole, [], str))
    assert [d.place for d in tensors('weights', whole, whole[:1], str)] == ['number of tensors']
    assert [d.place for d in tensors('weights', whole, [('h', 1., 1.), ('j', 2., 1.)], str)] == ['1']


def test_the_newest_checkpoint_of_both_runs_is_the_start(own_folder):
    """One of a run that keeps few of them may be too many updates before."""
    for name, kept in (('a', 1), ('b', 3)):
        train(name, learner=dict(hook=dict(save_ckpt_after_iter=1)))
        rewrite(name, [*lines(name)[:4], dict(lines(name)[4], rate=float(kept))])
        for number in {1, 2, 3, 4} - {kept}:
            os.remove(f'{name}/ckpt/iteration_{number}.pth.tar')
    assert 'Update 3 again, from b/ckpt/iteration_3.pth.tar:' in asked(bisect, 'a', 'b')[1]


def test_one_changed_problem(own_folder):
    """At the update, the group and the number of the problem that was drawn first."""
    words = dict(words=[*map(str, range(10)), '+', '='])
    held_out = dict(question='7 + 1 =', answer='8')
    for name, second in (('a', '4 + 1 ='), ('b', '4 + 2 =')):
        rows = [dict(question=f'{i} + 1 =', answer=str(i + 1)) for i in range(4)] + [dict(question=second, answer='5')]
        for path, of_file in ((f'{name}.jsonl', rows), ('held_out.jsonl', [held_out])):
            with open(path, 'w', encoding='utf-8') as f:
                f.writelines(json.dumps(row) + '\n' for row in of_file)
        task = dict(type='file', path=f'{name}.jsonl', eval_path='held_out.jsonl', check='exact')
        main, create = configs()
        main.env.update(task=task, tokenizer=words, evaluator_env_num=1, n_evaluator_episode=1)
        train(name, (main, create))
    group = next(
        (u, g) for u, line in enumerate(lines('a')[1:]) for g, drawn in enumerate(line['drawn']) if drawn[2] == 4
    )
    out = first_of(parts('a', 'b'))
    assert out == f'update {group[0]}, drawn: group {group[1]}, start: another prompt, or another first observation'


def test_a_scorer_that_is_not_deterministic(run, own_folder, monkeypatch):
    """Some rewards of one run are 0.25 higher, and others of the same rows again."""
    calls, own = [], ThinkAnswerTask.score

    def score(self, problem, completion):
        calls.append(completion)
        found = dict(own(self, problem, completion))
        found['format'] += 0.25 * (len(calls) % 7 == 0)
        return found

    monkeypatch.setattr(ThinkAnswerTask, 'score', score)
    train('b')
    out = asked(bisect, run, 'b')[1]
    place, values = first_of(out).split(', format: ')
    a, b = map(float, values.split(' / '))
    assert place.startswith('update 0, scored: group ') and b - a == 0.25
    assert 'under the settings of RUN_A: differs from RUN_A (RUN_A / again), first in scored: group ' in out
    assert 'The same rows get other rewards: the scorer is not deterministic.' in out


def test_a_flipped_bit_in_a_checkpoint(run, own_folder):
    """The run that went on from it is compared with the one that was never stopped."""
    stopped_after(run, 'b', 2)
    flip('b/ckpt/iteration_2.pth.tar', 'model', 'lm.model.norm.weight')
    train('b', resume_training=True)
    out = parts(run, 'b')
    assert first_of(out).startswith('update 2, checkpoint: model lm.model.norm.weight: b began again after update 2')


def test_a_resumed_run_continues_its_chain(run, own_folder):
    """Updates that are repeated after a kill replace the older lines."""
    stopped_after(run, 'b', 2)
    assert [line.get('update') for line in lines('b')] == [None, 0, 1, 2, 3]
    train('b', resume_training=True)
    assert [line.get('update') for line in lines('b')] == [None, 0, 1, None, 2, 3]
    assert lines('b')[3]['altered'] == [] and lines('b')[3]['begin'] == 2
    assert asked(bisect, run, 'b') == (0, '4 updates of both runs are equal\n')


def rounded(text, size):
    return coded(np.array(decoded(text)) * (1 + size))


def of_other_version(found, size=1e-7):
    """The chain that another version of torch leaves, as far as it rounds otherwise from update 1 on."""
    found = copy.deepcopy(found)
    found[0]['machine']['torch'] = '2.9.0'
    for line in found[2:]:
        logp = line['sampled']['logp']
        logp.update(hash=coded(np.array(decoded(logp['hash'])) + 1), sum=rounded(logp['sum'], size))
        line['weights'] = [['0' * 8, x * (1 + size), scale] for _, x, scale in line['weights']]
    return found


def test_another_version_of_torch(run, own_folder):
    """A recorded chain stands for the second environment. The first difference is as small as rounding."""
    train('b')
    rewrite('b', of_other_version(lines('b')))
    out = parts(run, 'b')
    own = lines(run)[0]['machine']['torch']
    assert f'machine torch: {own} / 2.9.0\n' in out
    assert first_of(out).startswith('update 1, sampled: group 0, row 0, log-probability: ')
    assert 'as small as rounding: --tolerance 0.0001 goes on' in out
    again = asked(bisect, run, 'b')[1]
    assert '  under the settings of RUN_B: differs from RUN_B (RUN_B / again), first in sampled: group 0' in again
    assert f'    this process has torch {own}, but 2.9.0 in RUN_B\n' in again
    assert again.endswith('  Left as a cause, and not possible here: torch\n') and 'in RUN_A' not in again
    status, out = asked(bisect, run, 'b', '--tolerance', 1e-5)
    assert status == 0 and 'rounding within the tolerance of 1e-05, from update 1 on; largest by stage: sampled' in out
    assert out.endswith('4 updates of both runs are equal, but for rounding\n')
    assert asked(bisect, run, 'b', '--tolerance', 1e-9, '--no-again')[0] == 1


def test_the_first_step_of_a_row_that_differs(run, own_folder):
    """One token of one row, in the ids that the line has."""
    train('b')
    found = lines('b')
    sampled = found[2]['sampled']
    lengths, ids, hashes = (np.array(decoded(sampled[key])) for key in ('length', 'ids', 'hash'))
    at = lengths[0] + 2  # step 2 of the second row
    before, ids[at] = ids[at], ids[at] + 1
    hashes[1] += 1
    sampled.update(ids=coded(ids), hash=coded(hashes))
    rewrite('b', found)
    assert first_of(parts(run, 'b')) == f'update 1, sampled: group 0, row 1, step 2: {before} / {before + 1}'


def test_nothing_to_compare(run, own_folder):
    train('b', configs(policy=dict(instruments=dict(digests=False))), updates=1)
    assert not os.path.exists('b/log/learner/digests.jsonl')
    status, out = asked(bisect, run, 'b')
    assert status == 2 and out == (
        "Error: RUN = 'b': contains no log/learner/digests.jsonl. Runs of grpo write this file, unless "
        "policy.instruments.digests=False; this one has policy.type = 'grpo'.\n"
    )
    assert 'digests' not in read_checkpoint('b/ckpt/iteration_1.pth.tar')


def test_lines_of_updates_beyond_the_limit(run, own_folder):
    """They name the stage; the line after the checkpoint is full, and so are those of the other run."""
    train('b', configs(policy=dict(instruments=dict(digests_limit=0))))
    full, found = lines(run), lines('b')
    assert ['short' in line for line in found] == [False, True, True, False, True]
    assert asked(bisect, run, 'b') == asked(bisect, 'b', run) == (0, '4 updates of both runs are equal\n')
    full[2]['scored']['failed'] = full[2]['scored']['hash']
    rewrite('c', full, copied=run)
    hashed = 'others; a line of this update is short, with a hash for all of them'
    assert first_of(parts('b', 'c')) == f'update 1, scored: rewards: {hashed}'
    assert asked(bisect, 'b', 'c', '--tolerance', 1e-9)[0] == 0
    found[2]['short']['sampled']['steps'] = '0' * 8
    rewrite('b', found)
    assert first_of(parts('b', run, '--tolerance', 1)) == f'update 1, sampled: steps: {hashed}'


def test_a_short_line_has_every_stage(run):
    """A change of what a line has changes the hash of its stage, and of no other."""
    full = lines(run)[1]
    own = short(full)
    assert short(own) is own and {key: own[key] for key in ('update', 'steps', 'loss', 'rate')}.items() <= full.items()
    places = dict(
        drawn=['drawn', 0],
        sampled=['sampled', 'hash'],
        scored=['scored', 'parts', 'format'],
        compared=['compared', 'hash'],
        read=['read', 'hash'],
        gradients=['gradients', 1, 0],
        weights=['weights', 2, 0],
    )
    assert [*own['short']] == [*places]
    for stage, (*path, last) in places.items():
        changed = copy.deepcopy(full)
        reduce(lambda value, key: value[key], path, changed)[last] = 'other'
        other = short(changed)['short']
        assert [name for name in places if other[name] != own['short'][name]] == [stage]


def test_runs_without_a_common_update_are_not_equal(run, own_folder):
    """Such as a run and its branch, which begins where the run ended."""
    shutil.copytree(run, 'b')
    begin, *_, last = lines('b')
    rewrite('b', [dict(begin, begin=4), dict(last, update=4)])
    assert asked(bisect, run,
                 'b') == (2, f'Error: the runs have no update in common: {run} has 0 to 3, b has 4 to 4.\n')


def started(folder, name, threads=1, processes=1):
    code = RUN.format(threads=threads, name=name, several=processes > 1)
    found = [process.end() for process in connected(run_code, code, [folder] * processes)]
    assert all(status == 0 for status, _ in found), found


@pytest.mark.algotest
@pytest.mark.parametrize('change', [dict(threads=2), dict(processes=2)])
def test_other_threads_or_processes_round_otherwise(own_folder, change):
    """Both are told as rounding with a tolerance, and named as what differs."""
    started(own_folder, 'a')
    started(own_folder, 'b', **change)
    key = next(iter(change))
    status, out = asked(bisect, 'a', 'b')
    assert f'machine {key}: 1 / 2\n' in out
    if status == 1:
        assert 'as small as rounding' in out and ' sampled: ' in first_of(out) or ' read: ' in first_of(out), out
        if key == 'threads':
            assert "RUN_A's with 2 threads: makes the whole difference" in out
    status, out = asked(bisect, 'a', 'b', '--tolerance', 1e-3, '--no-again')
    assert status == 0, out


def test_threads_are_those_of_the_process(run):
    assert lines(run)[0]['machine']['threads'] == str(torch.get_num_threads())
