"""
The words of other libraries and this project's for them: ``python -m ding_grpo.words trl``, or ``verl``. A word is
answered with a key of a config, or with what takes its place.
"""
from typing import Dict, Optional

import click
from tabulate import tabulate

_MICRO = 'policy.learn.micro_batch_tokens (memory and time; the results do not change)'
_BATCH = 'policy.collect.groups (groups of an update) and policy.learn.batch_groups (groups of a step)'
_ENGINE = 'nothing: the model that learns samples'
TRL = dict(
    model='GRPO(model)',
    reward_funcs='reward',
    train_dataset='data',
    eval_dataset='eval_data',
    processing_class='tokenizer',
    peft_config='policy.model.lora',
    callbacks='on_update, on_evaluation',
    num_generations='policy.group_size',
    max_completion_length='env.max_new_tokens',
    max_prompt_length='env.max_prompt_length',
    chat_template_kwargs='env.chat_options',
    temperature='policy.collect.temperature',
    top_p='policy.collect.top_p',
    top_k='policy.collect.top_k',
    min_p="policy.collect.processors = [dict(type='min_p', p=...)]",
    repetition_penalty="policy.collect.processors = [dict(type='repetition_penalty', penalty=...)]",
    shuffle_dataset='policy.collect.problem_order',
    beta='policy.learn.kl.beta',
    sync_ref_model='policy.learn.kl.ref_sync_freq',
    ref_model_sync_steps='policy.learn.kl.ref_sync_freq',
    ref_model_mixup_alpha='policy.learn.kl.ref_sync_mixup',
    num_iterations='policy.learn.epoch_per_collect',
    epsilon='policy.learn.clip.ratio',
    epsilon_high='policy.learn.clip.ratio_high',
    delta='policy.learn.clip.delta',
    loss_type='policy.learn.loss',
    importance_sampling_level='policy.learn.ratio',
    scale_rewards="policy.learn.adv_method ('grpo' divides by the group's deviation, 'no_std' does not)",
    mask_truncated_completions='policy.learn.mask_truncated',
    top_entropy_quantile='policy.learn.entropy.top_share',
    reward_weights='env.reward_weights, by the names of the parts',
    learning_rate='policy.learn.learning_rate',
    weight_decay='policy.learn.weight_decay',
    optim='policy.learn.optimizer',
    lr_scheduler_type='policy.learn.lr_scheduler.type',
    warmup_steps='policy.learn.lr_scheduler.num_warmup_steps',
    warmup_ratio='policy.learn.lr_scheduler.num_warmup_steps, a number of updates',
    max_grad_norm='policy.learn.grad_clip_value',
    per_device_train_batch_size=_MICRO,
    gradient_accumulation_steps=_MICRO,
    generation_batch_size=_BATCH,
    steps_per_generation=_BATCH,
    max_steps='train(updates=...)',
    num_train_epochs='train(updates=...); without it, one pass over the data',
    output_dir='exp_name',
    eval_steps='policy.eval.evaluator.eval_freq',
    save_steps='policy.learn.learner.hook.save_ckpt_after_iter',
    save_total_limit='policy.run.keep_ckpt',
    resume_from_checkpoint='GRPO.load(folder), or policy.learn.resume_training',
    report_to="policy.learn.learner.hook.report.ext_args = dict(wandb=dict()), or mlflow, or trackio",
    log_completions='nothing: they are in log/collector/completions.jsonl',
    num_completions_to_print='policy.collect.collector.table_rows',
    bf16="policy.model.autocast = 'bfloat16'",
    gradient_checkpointing='policy.model.gradient_checkpointing',
    use_vllm=_ENGINE,
    vllm_mode=_ENGINE,
)
_ROLLOUT, _ACTOR = 'actor_rollout_ref.rollout', 'actor_rollout_ref.actor'
VERL = {
    'data.train_files': 'data',
    'data.val_files': 'eval_data',
    'data.train_batch_size': 'policy.collect.groups',
    'data.max_prompt_length': 'env.max_prompt_length',
    'data.max_response_length': 'env.max_new_tokens',
    'data.shuffle': 'policy.collect.problem_order',
    'custom_reward_function.path': "reward = 'file.py:name'",
    'actor_rollout_ref.model.path': 'GRPO(model)',
    f'{_ROLLOUT}.n': 'policy.group_size',
    f'{_ROLLOUT}.temperature': 'policy.collect.temperature',
    f'{_ROLLOUT}.top_k': 'policy.collect.top_k',
    f'{_ROLLOUT}.top_p': 'policy.collect.top_p',
    f'{_ROLLOUT}.name': _ENGINE,
    f'{_ACTOR}.ppo_mini_batch_size': 'policy.learn.batch_groups',
    f'{_ACTOR}.ppo_micro_batch_size_per_gpu': _MICRO,
    f'{_ACTOR}.ppo_epochs': 'policy.learn.epoch_per_collect',
    f'{_ACTOR}.clip_ratio': 'policy.learn.clip.ratio',
    f'{_ACTOR}.clip_ratio_low': 'policy.learn.clip.ratio',
    f'{_ACTOR}.clip_ratio_high': 'policy.learn.clip.ratio_high',
    f'{_ACTOR}.clip_ratio_c': "policy.learn.surrogate_options = dict(dual_clip=...) of 'clip'",
    f'{_ACTOR}.use_kl_loss': 'policy.learn.kl.beta, above 0',
    f'{_ACTOR}.kl_loss_coef': 'policy.learn.kl.beta',
    f'{_ACTOR}.kl_loss_type': 'policy.learn.kl.type',
    f'{_ACTOR}.entropy_coeff': 'policy.learn.entropy.weight',
    f'{_ACTOR}.loss_agg_mode': 'policy.learn.reduction',
    f'{_ACTOR}.grad_clip': 'policy.learn.grad_clip_value',
    f'{_ACTOR}.optim.lr': 'policy.learn.learning_rate',
    f'{_ACTOR}.optim.lr_warmup_steps': 'policy.learn.lr_scheduler.num_warmup_steps',
    f'{_ACTOR}.optim.weight_decay': 'policy.learn.weight_decay',
    'algorithm.adv_estimator': 'policy.learn.advantage and policy.learn.adv_method',
    'algorithm.norm_adv_by_std_in_grpo': "policy.learn.adv_method ('grpo', or 'no_std')",
    'algorithm.use_kl_in_reward': 'policy.learn.kl.in_reward',
    'algorithm.kl_ctrl.kl_coef': 'policy.learn.kl.beta',
    'trainer.total_training_steps': 'train(updates=...)',
    'trainer.total_epochs': 'train(updates=...); without it, one pass over the data',
    'trainer.test_freq': 'policy.eval.evaluator.eval_freq',
    'trainer.save_freq': 'policy.learn.learner.hook.save_ckpt_after_iter',
    'trainer.experiment_name': 'exp_name',
    'trainer.project_name': "policy.learn.learner.hook.report.ext_args = dict(wandb=dict(project='...'))",
}
LIBRARIES = dict(trl=TRL, verl=VERL)


def answer(word: str) -> Optional[str]:
    """What takes the place of another library's word, which may lack its first parts; None if no library has it."""
    for library, words in LIBRARIES.items():
        known: Dict[str, str] = {key.rpartition('.')[2]: told for key, told in words.items()} | words
        if word in known:
            return f"a word of {library}; here: {known[word]}."
    return None


@click.command()
@click.argument('library', type=click.Choice(list(LIBRARIES)))
def main(library: str) -> None:
    """Print the words of a library with this project's."""
    click.echo(tabulate(LIBRARIES[library].items(), [library, 'ding_grpo']))


if __name__ == '__main__':
    main()
