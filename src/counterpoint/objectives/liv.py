"""LIV: VIP towards image goals and towards language goals, tied by CLIP on goal frames (Ma et al., ICML 2023).

    L = w_image VIP(o_g) + w_text VIP(l) + w_clip CLIP(o_T, l)
    V(o; g) = cos(phi(o), phi(g)) / (1 - gamma),  V(o; l) = cos(phi(o), psi(l)) / (1 - gamma)

VIP(.) is `vip.dual_value_loss`; CLIP is the symmetric InfoNCE of cosines between each clip's last frame and its
instruction, the mean of the two directions.

Symbols: phi(o_0), phi(o_g), phi(o_t), phi(o_{t+1}), phi(o_T) -> `frames[:, 0..4]`; psi(l) -> `text`; gamma -> `discount`.

Where the sources differ:
  - Eq. 10 of the DecisionNCE paper prints VIP's reward with the other sign, and an InfoNCE of scaled cosines; the
    authors' CLIP term has no temperature and no scale. Followed: the authors'.
  - The authors use one reward for both goals: 0 where o_t is the image goal, which need not be the clip's last frame.
  - Their shuffles keep fixed points, so that a clip can be its own negative; `LIV` draws shuffles without fixed
    points. `liv_loss` takes any rows as an argument.
  - They add 1e-8 inside VIP's logarithms; `epsilon=1e-8` gives their numbers (see `vip`).
"""
