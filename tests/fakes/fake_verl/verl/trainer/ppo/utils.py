"""Double of the helpers that verl's entry point asks."""


def need_reference_policy(config):
    return config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward


def need_critic(config):
    return config.algorithm.adv_estimator == "gae" if config.critic.enable is None else config.critic.enable
