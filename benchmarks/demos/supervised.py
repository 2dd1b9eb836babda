"""
Supervised training of SmolLM2 on right answers to the training problems of a GRPO config, for as long as its run takes:
the same model, type, optimizer and schedule, which is stretched over the steps. Rows are read by the model of GRPO's
policy, which reads the worked examples, the same in each prompt, once for all rows.
"""
import os
import time

import click
import torch
from ding.utils import set_pkg_seed

from benchmarks.demos.elsewhere import environment
from ding_common import append_json, read_config_file
from ding_grpo.config.schedule import Schedule
from ding_grpo.model.causal_lm import CausalLM
from ding_grpo.model.read.prompts import PromptBatch
from ding_grpo.rl_utils import linear_log_prob, supervised_data, supervised_error
from dizoo_llm.envs import Demonstrations
from dizoo_llm.sft import collate, evaluate

ROWS = 16  # of a step
STEPS = 600  # which take about as long as GRPO's updates


def loss_of(model: CausalLM, demonstrations: Demonstrations, problems: torch.Tensor) -> torch.Tensor:
    """Mean negative log-probability of the right answers, each with its end-of-sequence token."""
    rows = [demonstrations[i] for i in problems.tolist()]
    answers = [[label for label in row['labels'] if label >= 0] for row in rows]
    prompts = [torch.tensor(row['input_ids'][:-len(answer)]) for row, answer in zip(rows, answers)]
    batch = collate([dict(input_ids=answer, labels=answer) for answer in answers])
    action, weight = batch['input_ids'], batch['attention_mask'].float()  # (B, S)
    states = model.completion_states(PromptBatch.of(prompts, model.device), action, weight.sum(1).long())
    logp = linear_log_prob(
        states.hidden, state=states.state, index=action, mask=weight, **model.output_head()._asdict()
    )
    return supervised_error(supervised_data(logp, weight), 'token')[0]


def train(model: CausalLM, cfg: dict, seed: int) -> None:
    """Train, evaluate at the same shares of the schedule as GRPO's run, and save the model for ``transformers``."""
    learn, run, env = cfg.policy.learn, cfg.policy.run, environment()
    demonstrations = Demonstrations(environment(evaluation=False))
    schedule = Schedule(learn.lr_scheduler, learn.learning_rate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learn.learning_rate, weight_decay=0., fused=True)
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    log, seconds = os.path.join(cfg.exp_name, 'evaluations.jsonl'), 0.
    every = STEPS * cfg.policy.eval.evaluator.eval_freq // run.num_updates

    for step in range(STEPS + 1):
        if step % every == 0:
            right = evaluate(model.lm, env, cfg.env.n_evaluator_episode)
            append_json(log, dict(step=step, seconds=seconds, eval_episode_return=right))
            click.echo(f'step {step}  held-out accuracy {right:.3f}  {seconds:.0f} s')
        if step == STEPS:
            break
        begun = time.monotonic()
        if len(order) < ROWS:  # each problem once before any comes again
            order = torch.cat([order, torch.randperm(len(demonstrations), generator=generator)])
        problems, order = order[:ROWS], order[ROWS:]
        optimizer.param_groups[0]['lr'] = schedule.rate(step * run.num_updates // STEPS)
        optimizer.zero_grad()
        loss_of(model, demonstrations, problems).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds += time.monotonic() - begun
    model.save_pretrained(os.path.join(cfg.exp_name, 'model'), env.tokenizer, env.max_new_tokens)


@click.command()
@click.option('-c', '--config', required=True, type=click.Path(exists=True))
@click.option('-s', '--seed', required=True, type=int)
def main(config: str, seed: int) -> None:
    """Train on right answers."""
    cfg, _ = read_config_file(config)
    os.makedirs(cfg.exp_name, exist_ok=True)
    set_pkg_seed(seed, use_cuda=False)
    model = CausalLM(cfg.policy.model.pretrained, autocast=cfg.policy.model.autocast)
    env = environment()
    model.limit_vocabulary(len(env.tokenizer))
    model.limit_length(env.max_prompt_length + env.max_tokens)
    train(model, cfg, seed)


if __name__ == '__main__':
    main()
