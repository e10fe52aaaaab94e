"""Register Counterpoint's policies and reward models in LeRobot.

LeRobot's commands import every installed package whose name begins with `lerobot_policy_`.
"""

import counterpoint.policies.lerobot_plugin
import counterpoint.rewards.lerobot_plugin  # noqa: F401
