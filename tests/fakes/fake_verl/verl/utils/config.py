"""Double of verl's own validation: one of its assertions."""


def validate_config(config, use_reference_policy, use_critic):
    batch = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    assert batch % gpus == 0, (
        f"real_train_batch_size ({batch}) must be divisible by minimal possible batch size ({gpus})"
    )
    micro = config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
    if not config.actor_rollout_ref.actor.use_dynamic_bsz and micro is None:
        raise ValueError("[actor_rollout_ref.rollout] Please set at least one of the micro batch sizes.")
