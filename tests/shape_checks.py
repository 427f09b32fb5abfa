"""The checker behind jaxtyping's import hook: beartype, with an int allowed where a float is asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
