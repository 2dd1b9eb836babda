"""Sampling by servers of vLLM, which get the new weights after each update."""
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from torch import Tensor

from ding_common import ConfigError
from ding_grpo.act.sampler import RowRequest, Sampler
from ding_grpo.model import CausalLM
from ding_grpo.rollout import Rollout, Sampling

from .answers import rollout_of
from .launched import arguments
from .options import KEY, EngineOptions, check_sampling
from .pool import ServerPool
from .proof import Bounds, check_tokenizer, prove
from .requests import Requests
from .server import Row
from .transfer import Adapters, WholeModel

NEVER = -100.0  # bias of a logit whose token must not be sampled; its probability is then 0 in float32


class VllmSampler(Sampler):
    """Asks servers for the rows of a collect, one request for each row, with a seed that depends on (seed, collect,
    group, row). A row that a server did not answer is asked for again, and is then the same row."""

    def __init__(self, cfg: Dict, model: CausalLM) -> None:
        """``cfg`` is the section ``policy``."""
        check_sampling(cfg)
        self.transfer = Adapters(model) if model.has_adapters else WholeModel(model)
        self.model, self.pool = model, ServerPool(EngineOptions.of(cfg.collect.engine), self.transfer)
        self._bounds: Optional[Bounds] = None

    @property
    def exact(self) -> bool:
        return self.bounds is not None and self.bounds.exact

    @property
    def bounds(self) -> Optional[Bounds]:
        """Of the gap to the learner's log-probabilities, once any process of the run has compared them."""
        if self._bounds is None and os.path.exists(self._bounds_file):
            with open(self._bounds_file, encoding='utf-8') as f:
                self._bounds = Bounds(**json.load(f))
        return self._bounds

    @property
    def _bounds_file(self) -> str:
        return os.path.join(self.pool.folder, 'bounds.json')

    def bind(self, spec: NamedTuple, sampling: Sampling) -> None:
        self.spec, self.sampling = spec, sampling

    def load(self, weights: Dict[str, Tensor], version: int) -> None:
        """``weights`` are those of the model that it was made with."""
        if not self.pool.servers:
            self.pool.open(self._arguments)
            for server in self.pool.servers:
                check_tokenizer(server, self.spec)
        with self.pool.turn():
            if self.bounds is not None:
                self.pool.send()
                return
            bounds = prove(self)  # the servers have the true weights then
            with open(f'{self._bounds_file}.part', 'w', encoding='utf-8') as f:
                json.dump(bounds._asdict(), f)
            os.replace(f'{self._bounds_file}.part', self._bounds_file)

    def sample(self, request: RowRequest) -> Rollout:
        if request.forced:
            raise ConfigError(f'{KEY}: forces no tokens, as in a replay with --force. Set it to None.')
        if not self.pool.servers:  # it was closed
            self.load({}, 0)
        with self.pool.turn():
            self.pool.bring_up()
            self.pool.share()
            return self._sample(request)

    def _sample(self, request: RowRequest) -> Rollout:
        greedy, spec, most = request.uniform is None, self.spec, self.spec.max_new_tokens
        limits = [most] * len(request.prompts) if request.limit is None else request.limit.clamp(max=most).tolist()
        params = self.params(greedy)
        rows = []
        for i, (prompt, limit) in enumerate(zip(request.prompts, limits)):
            own = dict(params, max_tokens=limit, stop_token_ids=list(spec.eos_token_ids))
            rows.append(self.row(prompt.tolist(), own, None if greedy else request.uniform[i]))
        # rows of a group share their prompt, and so a server's prefix cache
        servers = [request.row_keys.get(i, (0, i))[1] % len(self.pool.servers) for i in request.env_ids]
        requests = Requests(self.pool, rows, servers, request.early_stop, self.newest, spec.ends)
        top = 0 if greedy else self.sampling.top_k or 0
        return rollout_of(requests.answers(), top, greedy, requests.sampled_after)

    def params(self, greedy: bool = False) -> Dict[str, Any]:
        """vLLM's ``SamplingParams`` for all rows."""
        vocabulary = range(self.spec.vocab_size, self.model.vocab_size)  # tokens that no text has, of many models
        bias = dict(logit_bias={str(i): NEVER for i in vocabulary}) if vocabulary else {}
        common = dict(n=1, ignore_eos=True, detokenize=False, logprobs=0, **bias)
        if greedy:
            return dict(common, temperature=0.0)
        s = self.sampling
        limits = dict(top_k=s.top_k, top_p=s.top_p, min_p=s.min_p)
        return dict(
            common,
            temperature=s.temperature,
            **{name: x
               for name, x in limits.items() if x is not None},
            **({} if s.top_k is None else dict(logprobs=min(s.top_k, self.spec.vocab_size)))
        )

    def row(self, prompt: List[int], params: Dict[str, Any], uniform: Optional[Tensor] = None) -> Row:
        return Row('', prompt, params, self.pool.version, uniform)

    def close(self) -> None:
        self.pool.close()
        self._bounds = None

    def _arguments(self, folder: str, port: int) -> List[str]:
        """Of a server that the run starts, of a model in a folder."""
        longest, dtype = self.spec.max_prompt_length + self.spec.max_tokens, str(self.model.lm.dtype)
        return self.transfer.arguments() + arguments(
            folder, port, longest, dtype.removeprefix('torch.'), self.sampling.top_k or 0, self.model.device.type
        )
