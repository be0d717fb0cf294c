"""From rollouts to a trainer: token sequences and groups, weights as GGUF, losses, and adapters.

Nothing here is imported by collection. ``sequences`` and ``live`` need no package beyond the core; the other modules
need the extra ``train`` (torch, transformers, peft, gguf; ``trl_environment`` needs trl).
"""
