"""Rows of an engine: their ids, log-probabilities and lengths, and what becomes of rows that are not answered."""
import math
import time

import pytest
import torch
from aiohttp import web

from ding_common import ConfigError, PeerError
from ding_grpo.act.sampler import RowRequest
from ding_grpo.engine import pool
from ding_grpo.engine.answers import rollout_of
from ding_grpo.engine.requests import Requests
from ding_grpo.model import CausalLM
from ding_grpo.rollout import EarlyStop, Sampling
from tests.engine.conftest import MODEL, counts, gap, learn

PROMPTS = [torch.tensor(ids) for ids in ([3, 4, 5], [3, 4, 5], [6, 7], [8, 9, 10, 11])]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No wait before another attempt."""
    monkeypatch.setattr(pool, 'LONGEST_WAIT', 0.01)


def begun(sampler):
    sampler.load(sampler.model.state_dict(), 1)
    for server in sampler.pool.servers:
        assert server.version
    return sampler


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def sampler(server, engine):
    return begun(engine(server))


def request(prompts=PROMPTS, keys=None, greedy=False, **kwargs):
    uniform = None if greedy else torch.rand(len(prompts), 6, dtype=torch.float64, generator=seeded())
    keys = {i: (0, i, 0) for i in range(len(prompts))} if keys is None else keys
    return RowRequest(list(range(len(prompts))), prompts, keys, uniform, **kwargs)


def answered(sampler, prompts, limits, early_stop=None, **options):
    """Rows that are asked for in other parts, or by fewer threads, than usual."""
    own, uniform = dict(sampler.params(), stop_token_ids=list(sampler.spec.eos_token_ids)), request(prompts).uniform
    rows = [sampler.row(ids.tolist(), dict(own, max_tokens=most), x) for ids, most, x in zip(prompts, limits, uniform)]
    with sampler.pool.turn():
        sampler.pool.share()
        requests = Requests(sampler.pool, rows, [0] * len(rows), early_stop, None, sampler.spec.ends, **options)
        return rollout_of(requests.answers(), 0, False)


def seeded():
    return torch.Generator().manual_seed(3)


def rows_of(rollout):
    return [ids[:n].tolist() for ids, n in zip(rollout.action, rollout.length)]


@pytest.mark.parametrize(
    'sampling',
    [Sampling(), Sampling(temperature=0.7),
     Sampling(top_k=4), Sampling(1.3, top_k=6, top_p=0.8)]
)
def test_log_probabilities_are_those_of_the_model(serve, engine, sampling):
    sampler = begun(engine(serve(), sampling=sampling))
    rollout = sampler.sample(request())
    own = counts(rollout)
    assert gap(sampler, PROMPTS, rollout, sampling) < 1e-5
    assert ((rollout.action >= 0) == own).all() and (rollout.logp[~own] == 0).all()
    assert (rollout.kept is None) == (sampling.top_k is None)
    if rollout.kept is not None:
        assert (rollout.kept == rollout.action.unsqueeze(-1)).any(-1)[own].all()
        assert rollout.kept.shape[2] == sampling.top_k and (rollout.kept[~own] == -1).all()


def test_same_request_gives_the_same_rows_and_equal_prompts_other_ones(sampler):
    first, again = sampler.sample(request()), sampler.sample(request())
    assert rows_of(first) == rows_of(again)
    assert rows_of(first)[0] != rows_of(first)[1]


def test_greedy_rows_are_those_of_the_model(sampler, model):
    found = sampler.sample(request(greedy=True))
    for prompt, ids in zip(PROMPTS, rows_of(found)):
        for t, i in enumerate(ids):
            logit = model.lm(torch.cat([prompt, torch.tensor(ids[:t], dtype=torch.long)])[None]).logits[0, -1, :36]
            assert logit.argmax() == i
    assert (found.logp == 0).all()


def test_rows_end_at_their_limit(sampler):
    assert sampler.sample(request(limit=torch.tensor([1, 2, 3, 9]))).length.le(torch.tensor([1, 2, 3, 6])).all()


def test_rows_with_stop_strings_end_there_and_are_not_sampled_to_their_limit(server, sampler):
    sampler.spec = sampler.spec._replace(ends=lambda ids: ids[-1] % 2 == 0)
    prompts = PROMPTS * 8
    whole = sampler.sample(request(prompts))
    server.asked.clear()
    rollout = answered(sampler, prompts, [6] * len(prompts), part=2)
    rows = rows_of(rollout)
    assert all(body['sampling_params']['max_tokens'] == 2 for body in server.asked)
    parts = [-(-len(ids) // 2) for ids in rows]  # rows end in their last part
    assert len(server.asked) == sum(parts) and {1, 2, 3} == set(parts)
    for ids in [*rows_of(whole), *rows]:
        ends = [i % 2 == 0 or i == 1 for i in ids]
        assert not any(ends[:-1]) and (ends[-1] or len(ids) == 6)
    assert gap(sampler, prompts, rollout) < 1e-5


def test_row_with_a_part_is_not_asked_for_again_when_enough_have_ended(server, sampler):
    sampler.spec = sampler.spec._replace(ends=lambda ids: False, eos_token_ids=())
    server.faults.seconds = lambda body: 0.5 if body['token_ids'] == [2] else 0.0
    server.asked.clear()
    stop = EarlyStop([(0, 0), (0, 1)], 1, torch.device('cpu'))
    rollout = answered(sampler, [torch.tensor([2]), torch.tensor([3])], [1, 6], stop, part=1)
    assert rollout.length.tolist() == [1, 1] and len(server.asked) == 2


def test_tokens_that_no_text_has_are_never_sampled(server, sampler, model):
    with torch.no_grad():
        model.lm.get_input_embeddings().weight[36:] *= 100  # the most probable ones, or the least
    sampler.load(model.state_dict(), 2)
    assert sampler.sample(request(prompts=PROMPTS * 8)).action.max() < 36


def test_new_weights_are_sampled_from(sampler):
    learn(sampler, 0)
    assert gap(sampler, PROMPTS, sampler.sample(request())) < 1e-4


def test_rows_of_a_group_ask_one_server(serve, engine):
    servers = serve(), serve()
    sampler = begun(engine(*servers))
    for server in servers:
        server.asked.clear()
    keys = {i: (0, i // 4, i % 4) for i in range(16)}
    sampler.sample(request([torch.tensor([2 + i // 4]) for i in range(16)], keys))
    asked = [[body['token_ids'] for body in server.asked] for server in servers]
    assert [sorted(ids) for ids in asked] == [[[2]] * 4 + [[4]] * 4, [[3]] * 4 + [[5]] * 4]


def lose(request, answer):
    request.transport.close()


def status(code, **headers):
    return lambda request, answer: web.json_response(dict(error='said so'), status=code, headers=headers)


def changed(**choice):

    def change(request, answer):
        answer['choices'][0].update(choice)

    return change


@pytest.mark.parametrize(
    'fault',
    [
        lose,
        status(500),
        status(503),
        status(429, **{'Retry-After': '0.01'}),
        status(429, **{'Retry-After': 'Wed, 21 Oct 2015 07:28:00 GMT'}),
        changed(weight_versions=[]),  # of which weights it is, is not known
    ]
)
def test_only_missing_rows_are_asked_again_and_are_the_same(server, sampler, fault):
    expected = rows_of(sampler.sample(request()))
    server.asked.clear()
    server.faults.answers = [lambda *_: None, fault]
    assert rows_of(sampler.sample(request())) == expected
    assert len(server.asked) == 5


def test_rows_beyond_those_that_count_are_ended(server, sampler):
    """Of each group of three, the two rows that are answered first; the server would wait a minute for the last."""
    prompts = [torch.tensor([2 + i % 3]) for i in range(6)]
    stop = EarlyStop([(i // 3, i % 3) for i in range(6)], 2, torch.device('cpu'))
    server.faults.seconds = lambda body: 60.0 if body['token_ids'] == [3] else 0.0
    start = time.monotonic()
    rollout = sampler.sample(request(prompts, early_stop=stop))
    assert time.monotonic() - start < 30
    assert stop.counted(rollout.length) == [True, False, True] * 2
    assert (rollout.length > 0).all() and rollout.logp.isfinite().all() and rollout.length[[1, 4]].tolist() == [1, 1]
    assert len(server.aborted) == 2


def test_rows_that_have_not_begun_are_not_asked_for_when_enough_have_ended(server, sampler):
    server.asked.clear()
    stop = EarlyStop([(0, i) for i in range(4)], 2, torch.device('cpu'))
    rollout = answered(sampler, PROMPTS, [6] * 4, stop, threads=1)
    assert len(server.asked) <= 3 and sum(stop.counted(rollout.length)) == 2
    assert sampler.sample(request()).length.min() > 0  # it goes on


@pytest.mark.parametrize(
    'change, words', [
        (changed(token_ids=[3] * 7), 'has answered 7 tokens with'),
        (changed(token_ids=[]), 'has answered 0 tokens'),
        (changed(token_ids=[-3] * 6), 'has answered 6 tokens'),
        (changed(logprobs=None), 'another form than vLLM'),
        (changed(weight_versions=None), 'another form than vLLM'),
        (status(400), 'refuses: 400'),
        (status(404), '--enable-scale-out'),
    ]
)
def test_wrong_answers_end_the_run(server, sampler, change, words):
    server.faults.answers = [change]
    with pytest.raises((ConfigError, PeerError)) as error:
        sampler.sample(request())
    assert words in error.value.message
    assert len(server.aborted) == 4  # the others do not run on


def test_nan_is_passed_on(server, sampler):
    with torch.no_grad():
        next(server.model.parameters()).fill_(math.nan)
    assert sampler.sample(request()).logp.isnan().any()


def test_rows_of_old_weights_are_sampled_again(server, sampler):
    loads, version = server.loads, server.version
    server.version = 'default'  # it has ended and was started again by somebody
    sampler.sample(request())
    assert server.loads == loads + 1 and server.version == version


def test_weights_are_sent_again_if_the_server_refuses_them_once(server, sampler, model):
    server.faults.refuses_weights = 1
    sampler.load(model.state_dict(), 2)
    assert sampler.sample(request()).length.min() > 0


@pytest.mark.parametrize(
    'keys, fault, words', [
        (dict(), dict(answers=[status(500)] * 100), '4 rows have no answer after 6 attempts'),
        (dict(patience=0.5), dict(version='other'), r"the row is of weights \['other'\]"),
        (dict(patience=0.5, seconds=0.5), dict(seconds=lambda body: 1.5), 'ReadTimeout'),
    ]
)
def test_a_server_that_never_answers_as_it_must_ends_the_run(serve, engine, keys, fault, words):
    server = serve()
    sampler = begun(engine(server, **keys))
    vars(server.faults).update(fault)
    with pytest.raises(PeerError, match=words):
        sampler.sample(request())


def test_server_of_another_model(serve, engine):
    other = CausalLM(config=dict(MODEL, intermediate_size=2 * MODEL['intermediate_size']))
    with pytest.raises(PeerError, match='does not take the weights: /update_weights: 500'):
        begun(engine(serve(other), patience=0.5))


def test_server_that_does_not_answer(engine):
    with pytest.raises(PeerError, match='http://127.0.0.1:9 does not answer for 0.3 s, policy.collect.engine.patience'):
        begun(engine(url='http://127.0.0.1:9', patience=0.3))


@pytest.mark.parametrize('folder', ['/dev/full/x', '/nowhere'])
def test_folder_that_cannot_be_written(serve, engine, folder):
    with pytest.raises(ConfigError, match=f"policy.collect.engine.folder = '{folder}'"):
        begun(engine(serve(), folder=folder))


def test_folders_of_killed_runs_are_removed_and_those_of_others_are_not(serve, engine, tmp_path):
    killed, foreign = tmp_path / 'ding_grpo_killed', tmp_path / 'ding_grpo_of_mine'
    for folder in (killed, foreign):
        folder.mkdir()
        (folder / 'weights').write_text('x')
    (killed / 'owner.1').write_text('')
    other = begun(engine(serve()))
    assert not killed.exists() and (foreign / 'weights').exists()
    begun(engine(serve()))
    assert rows_of(other.sample(request()))  # its folder is there


def test_nothing_is_left_and_it_opens_again(sampler, tmp_path):
    first = rows_of(sampler.sample(request()))
    assert list(tmp_path.iterdir())
    sampler.close()
    assert not list(tmp_path.iterdir())
    assert rows_of(sampler.sample(request())) == first
