"""A small server with the routes of vLLM 0.32 that the engine uses. It samples with this project's model."""
import asyncio
import math
import os
import threading
import uuid

import numpy as np
import torch
from aiohttp import web
from safetensors.torch import load_file

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import Sampling, generate

LOWEST = -9999.0  # as vLLM sends NaN and -Inf
PREFIX = 'generate-tokens-'  # of names of requests in vLLM


class Faults:
    """What is wrong with a server."""

    def __init__(self):
        self.keeps_weights = False  # says that it has new weights, and has the old ones
        self.loads = math.inf  # number of weights after which it does so
        self.keeps = set()  # names of weights of which it keeps the old values
        self.keeps_tied_head = False  # as vLLM 0.32 on a CPU
        self.raw_logprobs = False  # says log-probabilities of the model, and not of the sampling distribution
        self.version = None  # of the weights that it says it has
        self.answers = []  # called with (request, answer), one for each of the next requests; may return a response
        self.seconds = lambda body: 0.0  # before the answer to a request
        self.refuses_weights = 0  # times


class SmallVllm:

    def __init__(self, model, port=0, tokenizer=None):
        self.model, self._tokenizer = model, tokenizer
        self.faults, self.version, self.asked, self.aborted, self.adapters = Faults(), 'default', [], [], []
        self._ended = {}  # by request that runs: an event that ends it
        self.paused, self.loads, self.resets, self.dtype = False, 0, 0, 'float32'
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = self._run(self._serve(port))
        self.url = 'http://127.0.0.1:%d' % self._runner.addresses[0][1]

    def join(self):
        self._thread.join()

    def close(self):
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, port):
        app = web.Application()
        for path, does in {
                '/health': lambda _: web.Response(),
                '/weight_info': lambda _: dict(weight_version=self.version),
                '/v1/models': lambda _: dict(data=[dict(id=name) for name in ('policy', *self.adapters)]),
        }.items():
            app.router.add_get(path, self._answering(does))
        for path, does in {
                '/inference/v1/abort_requests': self._abort,
                '/tokenize': self._tokenize,
                '/collective_rpc': lambda _: dict(results=[dict(dtype=self.dtype)]),
                '/init_weight_transfer_engine': lambda _: {},
                '/pause': lambda _: self._set(paused=True),
                '/start_weight_update': self._start,
                '/update_weights': self._update,
                '/finish_weight_update': lambda body: self._set(version=body['weight_version'], loads=self.loads + 1),
                '/reset_prefix_cache': self._reset,
                '/v1/load_lora_adapter': self._load_adapter,
                '/v1/unload_lora_adapter': self._unload_adapter,
                '/update_weight_version': lambda body: self._set(version=body['new_version']),
                '/resume': lambda _: self._set(paused=False),
        }.items():
            app.router.add_post(path, self._answering(does))
        app.router.add_post('/inference/v1/generate', self._generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, '127.0.0.1', port).start()
        return runner

    @staticmethod
    def _answering(does):
        """The handler of a route, from a function of the request's body."""

        async def handle(request):
            found = does(await request.json() if request.can_read_body else None)
            return found if isinstance(found, web.Response) else web.json_response(found)

        return handle

    def _set(self, **values):
        vars(self).update(values)
        return {}

    def _abort(self, body):
        names = [name.removeprefix(PREFIX) for name in body['request_ids'] if name.startswith(PREFIX)]
        self.aborted += names  # vLLM ignores others
        for name in names:
            if name in self._ended:
                self._ended[name].set()
        return web.Response()

    def _tokenize(self, body):
        if self._tokenizer is None:
            return web.json_response(dict(error='no tokenizer'), status=500)
        return dict(tokens=self._tokenizer.encode(body['prompt'], add_special_tokens=False))

    def _start(self, _):
        if self.faults.refuses_weights > 0:
            self.faults.refuses_weights -= 1
            return web.json_response(dict(error='busy'), status=500)
        return {}

    def _update(self, body):
        assert self.paused, 'vLLM ends if an update begins while requests run'
        self._load(body['update_info']['path'])
        return {}

    def _reset(self, _):
        self.resets += 1
        return web.Response()

    def _load_adapter(self, body):
        self.adapters.append(body['lora_name'])
        given = load_file(os.path.join(body['lora_path'], 'adapter_model.safetensors'))
        with torch.no_grad():
            for name, own in self.model.lm.named_parameters():
                saved = 'base_model.model.' + name.replace('.default.', '.')
                if saved in given and name not in self.faults.keeps:
                    own.copy_(given[saved])
        return web.Response(text='Success: the adapter was added.')

    def _unload_adapter(self, body):
        self.adapters.remove(body['lora_name'])
        return web.Response(text='Success: the adapter was removed.')

    def _load(self, path):
        if self.faults.keeps_weights or self.loads >= self.faults.loads:
            return
        lm, weights = self.model.lm, load_file(path)
        if self.faults.keeps_tied_head:
            lm.lm_head.weight = torch.nn.Parameter(lm.lm_head.weight.detach().clone())
        with torch.no_grad():
            for name, own in lm.named_parameters():
                if name not in self.faults.keeps and name in weights:
                    own.copy_(weights[name])

    async def _generate(self, request):
        body = await request.json()
        assert body['model'] in ('policy', *self.adapters)
        self.asked.append(body)
        assert not self.paused
        answer = self._sampled(body)
        ended = self._ended[body['request_id']] = asyncio.Event()
        try:
            await asyncio.wait_for(ended.wait(), self.faults.seconds(body))
            choice, = answer['choices']
            if len(choice['token_ids']) > 1:  # it has not come to its end
                choice.update(token_ids=choice['token_ids'][:1], finish_reason='abort')
                choice['weight_versions'][0]['end'] = 1
                choice['logprobs']['content'] = choice['logprobs']['content'][:1]
        except asyncio.TimeoutError:
            pass
        finally:
            del self._ended[body['request_id']]
        if self.faults.answers:
            found = self.faults.answers.pop(0)(request, answer)
            if found is not None:
                return found
        return web.json_response(answer)

    def _sampled(self, body):
        """As vLLM: ids, log-probabilities, and the version of the weights."""
        params, prompt = body['sampling_params'], torch.tensor(body['token_ids'])
        greedy, n = params['temperature'] == 0, params['max_tokens']
        bias = torch.zeros(self.model.vocab_size)
        for i, value in params.get('logit_bias', {}).items():
            bias[int(i)] = value
        limits = {name: params[name] for name in ('top_k', 'top_p', 'min_p') if name in params}
        sampling = Sampling(temperature=1.0 if greedy else params['temperature'], logit_bias=bias, **limits)
        uniform = None if greedy else torch.from_numpy(np.random.default_rng(params['seed']).random((1, n)))
        prompts = PromptBatch.of([prompt], self.model.device)
        rollout = generate(self.model, prompts, n, params.get('stop_token_ids', ()), sampling, uniform)
        ids = rollout.action[0].tolist()
        logp = rollout.logp[0]
        if self.faults.raw_logprobs:
            logit = self.model.completion_logits(prompts, rollout.action)
            logp = logit.log_softmax(-1).gather(-1, rollout.action.unsqueeze(-1))[0, :, 0].detach()
        top = [[i] for i in ids]
        if params['logprobs'] > 0:
            kept = rollout.kept[0].tolist()
            top = [[i, *(j for j in row if j >= 0 and j != i)] for i, row in zip(ids, kept)]
        content = [
            dict(
                token_id=i,
                logprob=LOWEST if math.isnan(p) else p,
                top_logprobs=[dict(token_id=j, logprob=-1.0) for j in row]
            ) for i, p, row in zip(ids, logp.tolist(), top)
        ]
        choice = dict(
            token_ids=ids,
            logprobs=dict(content=content),
            finish_reason='stop' if ids[-1] in params.get('stop_token_ids', ()) else 'length',
            weight_versions=[dict(version=self.faults.version or self.version, start=0, end=len(ids))]
        )
        return dict(request_id=body.get('request_id', uuid.uuid4().hex), choices=[choice])
